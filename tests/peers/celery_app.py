"""The Celery application that is measured: a task that does nothing, as durable as a Penstock job.

Reads PENSTOCK_TEST_QUEUE (amqp://…), PENSTOCK_TEST_STORE (postgres://…) and PENSTOCK_PEER_RUN, which names the
queue and the database. What makes Celery quicker without costing durability is on.
"""

import os

from celery import Celery, signals
from celery.worker.consumer import Consumer
from kombu import Exchange, Queue
from sqlalchemy import make_url

RUN = os.environ["PENSTOCK_PEER_RUN"]
STORE = make_url(os.environ["PENSTOCK_TEST_STORE"])
# By psycopg2, which takes the worker less time for each task than psycopg 3 does.
RESULTS = STORE.set(drivername="postgresql+psycopg2", database=RUN).render_as_string(hide_password=False)
QUEUE = Queue(
    RUN,
    Exchange(RUN, auto_delete=True),
    RUN,
    # A quorum queue is on disk before the broker confirms. The broker deletes one that a killed run leaves.
    queue_arguments={"x-queue-type": "quorum", "x-expires": 600_000},
)

app = Celery("noop")


@app.task(name="noop")
def noop():
    pass


@signals.worker_init.connect
def keep_connections(**_):
    # Only a backend that was made before the fork keeps its connection; any other opens one for each result.
    return app.backend


class WithoutDelayedDelivery(Consumer):
    """No task here is for later, and the step for those would leave dozens of queues and exchanges in the broker."""

    class Blueprint(Consumer.Blueprint):
        default_steps = [step for step in Consumer.Blueprint.default_steps if "delayed_delivery" not in step]


# Durability: a task whose submit returned ends, and its result stays, whatever is killed.
app.conf.update(
    broker_url=os.environ["PENSTOCK_TEST_QUEUE"],
    task_queues=[QUEUE],
    task_default_queue=RUN,
    # Messages survive a restart of the broker.
    task_default_delivery_mode="persistent",
    # A submit returns when the broker has confirmed the message, not when it lies in a socket.
    broker_transport_options={"confirm_publish": True},
    # The message is acknowledged when the result is stored, so that the task of a killed worker runs again.
    task_acks_late=True,
    # The same where only the process is killed that ran the task.
    task_reject_on_worker_lost=True,
    # The result is a row, and on disk before the message is acknowledged.
    result_backend=f"db+{RESULTS}",
    task_ignore_result=False,
    database_engine_options={
        "connect_args": {"options": "-c synchronous_commit=on"},
        # For speed: no query before each use of a connection. A write that meets a broken one is tried again.
        "pool_pre_ping": False,
    },
)

# Speed: costs no durability.
app.conf.update(
    worker_pool="prefork",
    # Messages that the worker holds for each process, so that none waits for the broker.
    worker_prefetch_multiplier=64,
    # The prefetch is the consumer's: a quorum queue refuses one for a whole channel.
    worker_detect_quorum_queues=True,
    worker_consumer=WithoutDelayedDelivery,
    # celery_noop.py has made the tables: no client looks for them.
    database_create_tables_at_setup=False,
    # No messages between workers, no events for monitors, no counting for rate limits.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_disable_rate_limits=True,
    # A worker that finds no broker ends, instead of trying for minutes.
    broker_connection_retry_on_startup=False,
)
