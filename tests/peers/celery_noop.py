"""Submits tasks that do nothing to Celery and waits for their results: README.md says what that shows.

The script `celery` beside this file installs the packages and runs this.
"""

import argparse
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, closing, contextmanager

import billiard.util
import celery
import kombu
import psycopg2
import sqlalchemy
from amqp.exceptions import PreconditionFailed

from celery_app import QUEUE, RUN, STORE, app, noop

# Results are asked for this often, so an end is seen at most about this much late.
POLL_S = 0.002
# When nothing ends for this long, something is broken.
PATIENCE_S = 30
# Where the machine is slow, a row has fewer jobs, so as to take about this long.
ROW_S = 20
# How long a server may take to answer, and the worker to stop.
ANSWER_S, STOP_S = 5, 10

NOTES = [
    "closed loop: a client submits its next job when its last one has ended, as in penstock bench queue; submits/s"
    " is then the clients divided by the mean time of a submit. open loop: each client submits as fast as it can.",
    f"end to end: from the submit until the committed result row is seen by a poll each {POLL_S * 1e3:.0f} ms; Celery's"
    " database backend tells nobody, and its own wait for a result polls each 500 ms.",
    "not comparable: an accepted task is a message in RabbitMQ and nothing in Postgres, so it cannot be listed, looked"
    " up or cancelled for certain until it ends; no HTTP, tenants, limits, idempotency keys or output stream.",
    "not comparable: clients are threads of one Python process, each with its own connection to RabbitMQ.",
    "log bytes are those of the whole Postgres server: nothing else may use it meanwhile.",
]

TITLES = [
    "loop", "clients", "ended", "submits/s", "jobs/s", "submit p50/95/99", "end to end p50/95/99", "log bytes/job",
]


class Failed(Exception):
    """Why there are no figures, in words for whoever ran this."""


class Results(threading.Thread):
    """Sees each result once it is committed, and wakes who waits for it."""

    def __init__(self, connection, worker):
        super().__init__(daemon=True)
        self.connection = connection
        self.worker = worker
        self.ended = {}  # task -> when
        self.failure = None
        self.waiting = {}  # task -> event
        self.news = threading.Condition()

    def run(self):
        try:
            self.watch()
        except Exception as error:
            self.fail(error)

    def watch(self):
        # Ids are given before commits, which come in another order: up to `complete` all are seen, above it `early`.
        complete, early = 0, set()
        pause = threading.Event()
        while not self.failure:
            pause.wait(POLL_S)
            query = "SELECT id, task_id, status FROM celery_taskmeta WHERE id > %s"
            rows = [row for row in ask(self.connection, query, complete) if row[0] not in early]
            now = time.perf_counter()
            for _, task, status in rows:
                if status != "SUCCESS":
                    raise Failed(f"task {task} ended as {status}")
            if self.worker.poll() is not None:
                raise Failed(f"the worker stopped with exit status {self.worker.returncode}")
            with self.news:
                for _, task, _ in rows:
                    self.ended[task] = now
                    if event := self.waiting.pop(task, None):
                        event.set()
                if rows:
                    self.news.notify_all()
            early.update(row[0] for row in rows)
            while complete + 1 in early:
                complete += 1
                early.remove(complete)

    def fail(self, error):
        """Ends every wait with this error."""
        with self.news:
            self.failure = self.failure or error
            for event in self.waiting.values():
                event.set()
            self.news.notify_all()

    def expect(self, task):
        """An event for `wait`; called before the submit, which the end may overtake."""
        event = threading.Event()
        with self.news:
            self.waiting[task] = event
            if self.failure:
                event.set()
        return event

    def wait(self, event):
        """Until the event's task has ended."""
        ended = event.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        if not ended:
            raise Failed(f"a task did not end within {PATIENCE_S} s")

    def wait_for(self, n_ended):
        """Until so many tasks have ended since the start."""
        with self.news:
            while not self.failure and (known := len(self.ended)) < n_ended:
                self.news.wait_for(lambda: self.failure or len(self.ended) > known, PATIENCE_S)
                if not self.failure and len(self.ended) == known:
                    raise Failed(f"{n_ended - known} tasks are left and none ended within {PATIENCE_S} s")
            if self.failure:
                raise self.failure


class Row:
    """One measurement: so many clients at once, in a closed or in an open loop."""

    def __init__(self, results, store, clients, jobs, is_closed):
        self.results, self.store, self.clients, self.is_closed = results, store, clients, is_closed
        self.left = iter(range(jobs))
        # Clients are connected and have had one task done when the clock starts.
        self.start = threading.Barrier(clients + 1, action=self.begin)
        self.log_before = self.stop_at = None
        self.submitted = {}  # task -> begin and end of its submit

    def begin(self):
        self.log_before = log_position(self.store)
        self.stop_at = time.perf_counter() + (ROW_S if self.is_closed else math.inf)

    def client(self):
        try:
            with app.connection_for_write() as connection:
                producer = app.amqp.Producer(connection)
                self.submit(producer, {}, True)
                self.start.wait(PATIENCE_S)
                while time.perf_counter() < self.stop_at and next(self.left, None) is not None:
                    self.submit(producer, self.submitted, self.is_closed)
        except threading.BrokenBarrierError:
            pass  # The client that broke it has said why.
        except Exception as error:
            self.results.fail(error)
            self.start.abort()

    def submit(self, producer, submitted, and_wait):
        task = str(uuid.uuid4())
        event = self.results.expect(task) if and_wait else None
        begin = time.perf_counter()
        noop.apply_async(task_id=task, producer=producer, confirm_timeout=PATIENCE_S)
        submitted[task] = (begin, time.perf_counter())
        if and_wait:
            self.results.wait(event)

    def measure(self):
        known = len(self.results.ended)
        threads = [threading.Thread(target=self.client, daemon=True) for _ in range(self.clients)]
        try:
            for thread in threads:
                thread.start()
            self.start.wait(PATIENCE_S)
            for thread in threads:
                # Not a plain join: after a failure, a client may wait for ever to close its connection.
                while thread.is_alive() and not self.results.failure:
                    thread.join(0.2)
            self.results.wait_for(known + self.clients + len(self.submitted))
        except threading.BrokenBarrierError:
            raise self.results.failure or Failed(f"the clients were not ready within {PATIENCE_S} s") from None
        except BaseException:
            # No client may go on: its next submit would make the queue anew after the end has deleted it.
            self.stop_at = 0
            self.results.fail(Failed("interrupted"))
            self.start.abort()
            raise
        finally:
            patience = time.monotonic() + ANSWER_S
            for thread in threads:
                if thread.ident:
                    thread.join(max(0, patience - time.monotonic()))
        return self.figures(log_position(self.store) - self.log_before)

    def figures(self, log_bytes):
        begins, ends = zip(*self.submitted.values())
        submits = [end - begin for begin, end in self.submitted.values()]
        waits = [self.results.ended[task] - begin for task, (begin, _) in self.submitted.items()]
        n_jobs, first = len(submits), min(begins)
        last = max(self.results.ended[task] for task in self.submitted)
        submit_s = sum(submits) / self.clients if self.is_closed else max(ends) - first
        return {
            "loop": "closed" if self.is_closed else "open",
            "clients": self.clients,
            "succeeded": n_jobs,
            "seconds": last - first,
            "accepted_per_s": n_jobs / submit_s,
            "jobs_per_s": n_jobs / (last - first),
            "accept_ms": percentiles(submits),
            "end_to_end_ms": percentiles(waits),
            "log_bytes_per_job": log_bytes // n_jobs,
        }


def percentiles(seconds):
    ordered = sorted(second * 1e3 for second in seconds)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}
    found = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in shares.items()}
    return found | {"count": len(ordered)}


def log_position(store):
    [[position]] = ask(store, "SELECT pg_current_wal_lsn() - '0/0'")
    return int(position)


def connect(database):
    url = STORE.set(drivername="postgresql", database=database).render_as_string(hide_password=False)
    try:
        connection = psycopg2.connect(url, connect_timeout=ANSWER_S)
    except psycopg2.OperationalError as error:
        raise Failed(f"no Postgres: {str(error).splitlines()[0]}") from None
    connection.autocommit = True
    return connection


def ask(connection, query, *values):
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def broker():
    connection = app.connection_for_write()
    try:
        connection.connect()
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise Failed(f"no RabbitMQ at {connection.hostname}:{connection.port}: {error}") from None
    return connection


@contextmanager
def own_database():
    store = connect(STORE.database)
    try:
        with closing(store):
            ask(store, f"CREATE DATABASE {RUN}")
        yield
    finally:
        with removing(f"database {RUN}"), closing(connect(STORE.database)) as store:
            ask(store, f"DROP DATABASE IF EXISTS {RUN} WITH (FORCE)")


@contextmanager
def own_queue():
    connection = broker()
    try:
        with connection:
            QUEUE(connection.default_channel).declare()
            # The broker's word that it is a quorum queue: it refuses to declare the same one as another kind.
            as_classic = QUEUE.queue_arguments | {"x-queue-type": "classic"}
            classic = kombu.Queue(RUN, QUEUE.exchange, RUN, queue_arguments=as_classic)
            try:
                classic(connection.channel()).queue_declare()
                raise Failed(f"queue {RUN} is not a quorum queue")
            except PreconditionFailed:
                pass
        yield
    finally:
        with removing(f"queue {RUN} (the broker will, in ten minutes)"), broker() as connection:
            QUEUE(connection.default_channel).delete()


@contextmanager
def removing(what):
    try:
        yield
    except Exception as error:
        say(f"could not delete {what}: {error}")


@contextmanager
def running_worker(processes, log):
    command = ["-m", "celery", "--quiet", "-A", "celery_app", "worker", "--loglevel", "WARNING"]
    command += ["--concurrency", str(processes)]
    # No greetings, elections or heartbeats between workers, of which there is one.
    command += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    worker = subprocess.Popen(
        [sys.executable, *command],
        cwd=pathlib.Path(__file__).parent,
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        # Ctrl-C is for this process, which then stops the worker; and if this process is killed, the kernel does.
        start_new_session=True, preexec_fn=lambda: billiard.util.set_pdeathsig(signal.SIGTERM))
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_S)
        except subprocess.TimeoutExpired:
            say("the worker did not stop and is killed")
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.wait()


SERVER = ("SELECT current_setting('fsync'), current_setting('full_page_writes'),"
          " split_part(current_setting('server_version'), ' ', 1)")


def conditions(arguments, store):
    # A session of the backend's own, with the settings that the worker has; it also makes the tables.
    with app.backend.ResultSession() as session:
        commit = session.execute(sqlalchemy.text("SHOW synchronous_commit")).scalar()
    [[fsync, pages, version]] = ask(store, SERVER)
    if (commit, fsync) != ("on", "on"):
        raise Failed(f"Postgres is not durable: synchronous_commit {commit}, fsync {fsync}")
    with broker() as connection:
        product = connection.connection.server_properties
    about_cpus = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line.split(":")[1].strip() for line in about_cpus if line.startswith("model name")]
    return {
        "engine": f"celery {celery.__version__}, kombu {kombu.__version__}, SQLAlchemy {sqlalchemy.__version__},"
                  f" psycopg2 {psycopg2.__version__.split()[0]}, python {sys.version.split()[0]}",
        "store": f"PostgreSQL {version}, synchronous_commit {commit}, fsync {fsync}, full_page_writes {pages}",
        "queue": f"{product['product']} {product['version']}, quorum queue, confirmed publishes, late acknowledgements",
        "processes": arguments.processes,
        "prefetch": arguments.processes * app.conf.worker_prefetch_multiplier,
        "jobs": arguments.jobs,
        "cpu": cpu[0] if cpu else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
    }


def measure(arguments):
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(own_database())
        stack.enter_context(own_queue())
        store, reading = (stack.enter_context(closing(connect(RUN))) for _ in range(2))
        report = {"conditions": conditions(arguments, store), "rows": [], "notes": NOTES}
        worker = stack.enter_context(running_worker(arguments.processes, log))
        # A second Ctrl-C must not keep the worker running.
        stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
        results = Results(reading, worker)
        results.start()
        try:
            rows = report["rows"]
            for clients in arguments.clients:
                rows.append(Row(results, store, clients, arguments.jobs, is_closed=True).measure())
            jobs = min(arguments.jobs, math.ceil(ROW_S * max(row["jobs_per_s"] for row in rows)))
            for clients in arguments.clients:
                rows.append(Row(results, store, clients, jobs, is_closed=False).measure())
        except Exception:
            log.seek(0)
            sys.stderr.buffer.write(b"".join(log.readlines()[-15:]))
            raise
        [[n_stored]] = ask(store, "SELECT count(*) FROM celery_taskmeta WHERE status = 'SUCCESS'")
        if n_stored != len(results.ended):
            raise Failed(f"{len(results.ended)} results were seen, and Postgres has {n_stored}")
        return report


def show(report):
    about = report["conditions"]
    print(f"{about['engine']}\n{about['store']}\n{about['queue']}, {about['prefetch']} prefetched")
    print(f"{about['processes']} worker processes; {about['jobs']} jobs a row; {about['cores']} cores of",
          f"{about['cpu']}, load before {about['load_before']:.1f}; times in ms\n")
    lines = [TITLES]
    for row in report["rows"]:
        counts = [str(row[name]) for name in ("clients", "succeeded")]
        rates = [f"{row[name]:.0f}" for name in ("accepted_per_s", "jobs_per_s")]
        accept, end_to_end = row["accept_ms"], row["end_to_end_ms"]
        times = [" / ".join(f"{of[at]:.1f}" for at in ("p50", "p95", "p99")) for of in (accept, end_to_end)]
        lines.append([row["loop"], *counts, *rates, *times, str(row["log_bytes_per_job"])])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print()
    for note in report["notes"]:
        print(f"- {note}")


def say(what):
    print(f"tests/peers/celery: {what}", file=sys.stderr)


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def counts(text):
    return [count(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(prog="tests/peers/celery", add_help=False, allow_abbrev=False)
    parser.add_argument("--clients", type=counts, default=[1, 16, 128])
    parser.add_argument("--jobs", type=count, default=2000)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    def terminated(number, _frame):
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, terminated)
    try:
        report = measure(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        say(first_line if isinstance(error, Failed) else f"{type(error).__name__}: {first_line}")
        sys.exit(1)
    if arguments.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        show(report)


main()
