//! What is done to the installation.

use std::collections::BTreeMap;
use std::time::Duration;

use tests::Process;
use tests::cluster::Cluster;
use tests::proxy::Proxy;
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

pub struct Faults<'s> {
    random: Random,
    services: &'s Services,
    /// Store, queue, bus, objects.
    proxies: Vec<Proxy>,
    installation: Installation,
    counts: BTreeMap<&'static str, u64>,
    /// The broker's data is wiped once.
    wiped: bool,
}

const KILLS: [&str; 3] = ["api killed", "scheduler killed", "worker killed"];
const RESTARTS: [&str; 4] = ["postgres restarted", "rabbitmq restarted", "redis killed", "objects killed"];

impl<'s> Faults<'s> {
    pub fn new(seed: u64, services: &'s Services, proxies: Vec<Proxy>, installation: Installation) -> Self {
        let random = Random(seed ^ 0x00c0_ffee);
        Self { random, services, proxies, installation, counts: BTreeMap::new(), wiped: false }
    }

    pub fn addresses(&self) -> &[String] {
        &self.installation.addresses
    }

    /// Four kills of each process, one restart of each service, and the wipe.
    pub fn is_enough(&self) -> bool {
        let count = |name| self.counts.get(name).copied().unwrap_or(0);
        self.wiped && KILLS.iter().all(|name| count(name) >= 4) && RESTARTS.iter().all(|name| count(name) >= 1)
    }

    pub fn summary(&self) -> String {
        self.counts.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// One fault, then a while without.
    pub async fn strike(&mut self, cluster: &Cluster) {
        let which = self.random.below(2) as usize;
        match self.random.below(20) {
            0..=3 => self.kill("api killed", which),
            4..=7 => self.kill("scheduler killed", which),
            8..=12 => self.kill("worker killed", which),
            13 => self.service("postgres restarted", &[&["restart", "postgres"]]).await,
            14 if !self.wiped => {
                self.wiped = true;
                self.service("rabbitmq wiped", &[&["wipe", "rabbitmq"]]).await;
            }
            14 => self.service("rabbitmq restarted", &[&["kill", "rabbitmq"], &["up", "rabbitmq"]]).await,
            15 => self.service("redis killed", &[&["kill", "redis"], &["up", "redis"]]).await,
            16 => self.service("objects killed", &[&["kill", "s3"], &["up", "s3"]]).await,
            17 => {
                let nth = self.random.below(4) as usize;
                self.proxies[nth].cut();
                self.count("connections cut");
            }
            18 => {
                let nth = self.random.below(4) as usize;
                let ms = 1 + self.random.below(150);
                self.proxies[nth].delay(Duration::from_millis(ms));
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.proxies[nth].delay(Duration::ZERO);
                self.count("service slow for 2 s");
            }
            _ => {
                let nth = self.random.below(4) as usize;
                self.proxies[nth].refuse(true);
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.proxies[nth].refuse(false);
                self.count("service unreachable for 2 s");
            }
        }
        tokio::time::sleep(Duration::from_millis(300 + self.random.below(2_000))).await;
        self.installation.revive(cluster);
    }

    fn kill(&mut self, what: &'static str, which: usize) {
        let slots = match what {
            "api killed" => &mut self.installation.apis,
            "scheduler killed" => &mut self.installation.schedulers,
            _ => &mut self.installation.workers,
        };
        if let Some(process) = slots[which].take() {
            process.kill();
            self.count(what);
        }
    }

    async fn service(&mut self, what: &'static str, steps: &[&[&str]]) {
        for step in steps {
            // A while between the end and the new start.
            tokio::task::block_in_place(|| self.services.run(step));
            tokio::time::sleep(Duration::from_millis(self.random.below(1_500))).await;
        }
        self.count(what);
        if what == "rabbitmq wiped" {
            self.count("rabbitmq restarted");
        }
    }

    /// Ends all faults and waits until everything answers again.
    pub async fn heal(&mut self, cluster: &Cluster) {
        for proxy in &self.proxies {
            proxy.refuse(false);
            proxy.delay(Duration::ZERO);
        }
        tokio::task::block_in_place(|| self.services.run(&["up"]));
        let begin = std::time::Instant::now();
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
