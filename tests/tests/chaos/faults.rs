//! What is done to the installation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::Process;
use tests::cluster::Cluster;
use tests::proxy::Proxies;
use tests::services::Services;

use crate::clients::Random;

/// The processes of one installation: two of each kind.
pub struct Installation {
    pub addresses: Vec<String>,
    apis: Vec<Option<Process>>,
    schedulers: Vec<Option<Process>>,
    workers: Vec<Option<Process>>,
}

impl Installation {
    pub async fn start(cluster: &Cluster) -> Self {
        let mut addresses = Vec::new();
        let mut apis = Vec::new();
        for _ in 0..2 {
            let api = cluster.api();
            addresses.push(api.address.clone());
            apis.push(Some(api.process));
        }
        let schedulers = (0..2).map(|_| Some(cluster.scheduler())).collect();
        let workers = (0..2).map(|_| Some(cluster.worker())).collect();
        let installation = Self { addresses, apis, schedulers, workers };
        // The API reads the models on offer every two seconds.
        tokio::time::sleep(Duration::from_secs(3)).await;
        installation
    }

    /// Starts what is not running, without waiting for it: a service that it needs may be away just now.
    fn revive(&mut self, cluster: &Cluster) {
        let dead = |slot: &mut Option<Process>| !slot.as_mut().is_some_and(Process::is_running);
        for (slot, address) in self.apis.iter_mut().zip(&self.addresses) {
            if dead(slot) {
                let listen = address.trim_start_matches("http://");
                *slot = Some(Process::spawn(cluster.command(&["api", "--listen", listen])));
            }
        }
        for slot in self.schedulers.iter_mut().filter_map(|slot| dead(slot).then_some(slot)) {
            *slot = Some(Process::spawn(cluster.command(&["scheduler"])));
        }
        let model = tests::cluster::tiny_model();
        for slot in self.workers.iter_mut().filter_map(|slot| dead(slot).then_some(slot)) {
            *slot = Some(Process::spawn(cluster.command(&["worker", "--model", &model])));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Api,
    Scheduler,
    Worker,
    Postgres,
    RabbitMq,
    Redis,
    Objects,
    Cut,
    Slow,
    Unreachable,
}

/// How often each comes before any comes again.
const DECK: [(Fault, usize); 10] = [
    (Fault::Api, 4),
    (Fault::Scheduler, 4),
    (Fault::Worker, 6),
    (Fault::Postgres, 1),
    (Fault::RabbitMq, 1),
    (Fault::Redis, 1),
    (Fault::Objects, 1),
    (Fault::Cut, 2),
    (Fault::Slow, 2),
    (Fault::Unreachable, 2),
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Api => "api killed",
            Self::Scheduler => "scheduler killed",
            Self::Worker => "worker killed",
            Self::Postgres => "postgres restarted",
            Self::RabbitMq => "rabbitmq killed",
            Self::Redis => "redis killed and empty",
            Self::Objects => "object store killed",
            Self::Cut => "all connections to a service cut",
            Self::Slow => "a service slow for 2 s",
            Self::Unreachable => "a service unreachable for 2 s",
        }
    }
}

fn kill(slot: &mut Option<Process>) {
    if let Some(process) = slot.take() {
        process.kill();
    }
}

pub struct Faults<'s> {
    random: Random,
    deck: Vec<Fault>,
    services: &'s Services,
    proxies: Proxies,
    installation: Installation,
    counts: BTreeMap<&'static str, u64>,
    /// The broker's data is wiped once.
    wiped: bool,
    begin: Instant,
}

impl<'s> Faults<'s> {
    pub fn new(seed: u64, services: &'s Services, proxies: Proxies, installation: Installation) -> Self {
        let random = Random(seed ^ 0x00c0_ffee);
        Self {
            random,
            deck: Vec::new(),
            services,
            proxies,
            installation,
            counts: BTreeMap::new(),
            wiped: false,
            begin: Instant::now(),
        }
    }

    pub fn addresses(&self) -> &[String] {
        &self.installation.addresses
    }

    pub fn summary(&self) -> String {
        self.counts.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// One fault of a shuffled deck, then a while without. True when the deck is used up.
    pub async fn strike(&mut self, cluster: &Cluster) -> bool {
        if self.deck.is_empty() {
            self.deck = DECK.iter().flat_map(|(fault, n)| std::iter::repeat_n(*fault, *n)).collect();
            for last in (1..self.deck.len()).rev() {
                let other = self.random.below(last as u64 + 1) as usize;
                self.deck.swap(last, other);
            }
        }
        if let Some(fault) = self.deck.pop() {
            self.inject(fault).await;
        }
        tokio::time::sleep(Duration::from_millis(300 + self.random.below(1_500))).await;
        self.installation.revive(cluster);
        self.deck.is_empty()
    }

    async fn inject(&mut self, fault: Fault) {
        let which = self.random.below(2) as usize;
        let nth = self.random.below(4) as usize;
        match fault {
            Fault::Api => kill(&mut self.installation.apis[which]),
            Fault::Scheduler => kill(&mut self.installation.schedulers[which]),
            Fault::Worker => kill(&mut self.installation.workers[which]),
            Fault::Postgres => self.services(&["restart", "postgres"]).await,
            Fault::RabbitMq if !self.wiped => {
                self.wiped = true;
                self.services(&["wipe", "rabbitmq"]).await;
                self.count("of these with its data wiped");
            }
            Fault::RabbitMq => self.again("rabbitmq").await,
            // It keeps nothing on disk here: killed is flushed.
            Fault::Redis => self.again("redis").await,
            Fault::Objects => self.again("s3").await,
            Fault::Cut => self.proxies.all()[nth].cut(),
            Fault::Slow => {
                self.proxies.all()[nth].delay(Duration::from_millis(1 + self.random.below(150)));
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.proxies.all()[nth].delay(Duration::ZERO);
            }
            Fault::Unreachable => {
                self.proxies.all()[nth].refuse(true);
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.proxies.all()[nth].refuse(false);
            }
        }
        println!("chaos: {:6.1} s: {}", self.begin.elapsed().as_secs_f64(), fault.name());
        self.count(fault.name());
    }

    async fn again(&mut self, service: &str) {
        self.services(&["kill", service]).await;
        tokio::time::sleep(Duration::from_millis(self.random.below(1_500))).await;
        self.services(&["up", service]).await;
    }

    async fn services(&self, arguments: &[&str]) {
        tokio::task::block_in_place(|| self.services.run(arguments));
    }

    /// Ends all faults and waits until everything answers again.
    pub async fn heal(&mut self, cluster: &Cluster) {
        for proxy in self.proxies.all() {
            proxy.refuse(false);
            proxy.delay(Duration::ZERO);
        }
        self.services(&["up"]).await;
        let begin = Instant::now();
        loop {
            self.installation.revive(cluster);
            let mut ready = true;
            for address in &self.installation.addresses {
                let answer = tests::Client::new(address).http.get(format!("{address}/readyz")).send().await;
                ready &= answer.is_ok_and(|answer| answer.status() == 200);
            }
            if ready {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(90), "the installation did not come back");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
