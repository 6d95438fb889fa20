//! Nodes, the admin and the key service; everything that can happen, breadth first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::*;
use super::node::{Kek, Mutation, NOW, Node, Setup, Step};
use super::plan::{self, DESTROYED, Order};
use super::service::{Config, Health, Keys, Service, Wanted, policy};
use crate::outage::{OnRefused, State};

/// How many looks a calm schedule has to come to its end.
const LOOKS: usize = 3;
/// Which nobody has seen.
const NEW_VERSION: u8 = 99;
const ILLS: [Health; 4] = [Health::Unreachable, Health::Credential, Health::Refused, Health::Undecided];

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    nodes: usize,
    /// With which root keys all begin.
    keys: Keys,
    /// Whether the admin moves from A to B.
    plan: Option<Order>,
    /// What else the admin does: activate, roll back, raise the epoch.
    moves: u8,
    /// What goes wrong: outages, restarts, lost ledgers, planted bytes, a key that is made again.
    faults: u8,
}

impl Bounds {
    pub(super) const fn new(nodes: usize, moves: u8, faults: u8) -> Self {
        Self { nodes, keys: Keys::A, plan: None, moves, faults }
    }

    /// Both root keys write from the start.
    pub(super) const fn redundant(self) -> Self {
        Self { keys: Keys::BOTH, ..self }
    }

    pub(super) const fn moving(self, order: Order) -> Self {
        Self { plan: Some(order), ..self }
    }
}

/// Nodes in order of their numbers: which of them is which makes no difference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    config: Config,
    /// Of the plan.
    step: u8,
    service: Service,
    moves: u8,
    faults: u8,
    /// What is in etcd; empty if nobody moves.
    data: Vec<Kek>,
    nodes: Vec<u32>,
}

/// Shown on the way to a broken promise: nodes are sorted anew after each, so that a position is not a name.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Start,
    Activate,
    RollBack,
    RaiseEpoch,
    NextStep,
    Migrate,
    DestroyA,
    MakeAAgain,
    A(Health),
    B(Health),
    Node(usize, Step),
}

/// What was gone through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Explored {
    pub states: usize,
    /// States in which a node can't read what another one wrote, and says which root key it lacks.
    pub lacking: usize,
}

/// All nodes that were met, by number, and where each step leads.
pub(super) struct Model {
    setup: Setup,
    nodes: Vec<Rc<Node>>,
    numbers: HashMap<Rc<Node>, u32>,
    steps: HashMap<(u32, Step), Result<u32, String>>,
    calmed: HashMap<(u32, Config, u8), Result<Option<Wanted>, String>>,
    /// As they are right after a restart.
    restarted: HashSet<Node>,
}

impl Model {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            nodes: Vec::new(),
            numbers: HashMap::new(),
            steps: HashMap::new(),
            calmed: HashMap::new(),
            restarted: HashSet::new(),
        }
    }

    /// How many states of a node were met.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// All that can be reached, or the shortest way to a state that breaks a promise.
    pub(super) fn explore(&mut self, bounds: Bounds) -> Result<Explored, String> {
        let start = self.start(bounds);
        let mut known = HashMap::from([(start.clone(), ())]);
        let mut queue = vec![(start, 0, Happening::Start)];
        let mut explored = Explored::default();
        while explored.states < queue.len() {
            let at = explored.states;
            let world = queue[at].0.clone();
            let checked = self.agree_in_the_end(&world).and_then(|()| self.all_is_readable(&world, bounds));
            explored.lacking += usize::from(checked.map_err(|broken| told(&queue, at, None, &broken))?);
            for (happening, mut after) in self.what_can_happen(&world, bounds) {
                if let Happening::Node(index, step) = happening {
                    let number = self.step(world.nodes[index], step);
                    after.nodes[index] =
                        number.map_err(|broken| told(&queue, at, Some(happening), &broken))?;
                    if bounds.plan.is_some() {
                        after.writes(self.node(after.nodes[index]).seals_with());
                    }
                }
                after.nodes.sort_unstable();
                if let Entry::Vacant(new) = known.entry(after) {
                    queue.push((new.key().clone(), at, happening));
                    new.insert(());
                }
            }
            explored.states += 1;
        }
        Ok(explored)
    }

    fn start(&mut self, bounds: Bounds) -> World {
        let wanted = Wanted { epoch: 0, version: 1, keys: bounds.keys };
        let config = Config { wanted, reads: bounds.keys };
        let node = self.number(Node::new(self.setup.rules, config));
        World {
            config,
            step: 0,
            service: Service::well(0),
            moves: bounds.moves,
            faults: bounds.faults,
            data: Vec::new(),
            nodes: vec![node; bounds.nodes],
        }
    }

    /// From here, a schedule without faults leads all nodes to the same key id, or to a report whose remedy does.
    fn agree_in_the_end(&mut self, world: &World) -> Result<(), String> {
        let mut agreed = None;
        for number in &world.nodes {
            if let Some(active) = self.calmed(*number, world.config, world.service.born)?
                && *agreed.get_or_insert(active) != active
            {
                return Err(format!(
                    "a calm schedule ends with {active:?} on one node and {agreed:?} on another"
                ));
            }
        }
        Ok(())
    }

    /// Who waits for all nodes can read everything everywhere, all the time. Who does not gets a report, and reads once
    /// the configuration is there. Says whether there is such a report.
    fn all_is_readable(&mut self, world: &World, bounds: Bounds) -> Result<bool, String> {
        let born = world.service.born;
        let mut lacking = false;
        for kek in &world.data {
            if born == DESTROYED && kek.opens_with(born) == Keys::NONE {
                return Err(format!("{kek:?} is lost"));
            }
            for number in &world.nodes {
                let lacks = self.node(*number).lacks(*kek, born);
                if lacks == Keys::NONE {
                    continue;
                }
                if bounds.plan == Some(Order::Careful) {
                    return Err(format!("a node can't read {kek:?}: it lacks {lacks:?}"));
                }
                lacking = true;
                let config = Config { reads: Keys::BOTH, ..world.config };
                let healed = self.after_calm(*number, config, born)?;
                if self.node(healed).lacks(*kek, born) != Keys::NONE {
                    return Err(format!(
                        "a node still can't read {kek:?}, although it was told of all root keys"
                    ));
                }
            }
        }
        Ok(lacking)
    }

    /// What a node writes under at the end of a schedule without faults. `None` if it says why that is not what was
    /// wanted; a raised epoch or a new version must then make all well.
    fn calmed(&mut self, number: u32, config: Config, born: u8) -> Result<Option<Wanted>, String> {
        if let Some(known) = self.calmed.get(&(number, config, born)) {
            return known.clone();
        }
        let calmed = self.calm(number, config, born);
        self.calmed.insert((number, config, born), calmed.clone());
        calmed
    }

    fn calm(&mut self, number: u32, config: Config, born: u8) -> Result<Option<Wanted>, String> {
        let wanted = config.wanted;
        let end = self.after_calm(number, config, born)?;
        let writes = self.node(end).writes();
        if writes == Some(wanted) {
            return Ok(writes);
        }
        if !self.node(end).says_why_not(wanted) {
            return Err(format!(
                "a calm schedule ends with {writes:?} instead of {wanted:?}, and nothing says why"
            ));
        }
        let raised = Wanted { epoch: wanted.epoch + 1, ..wanted };
        let newer = Wanted { version: NEW_VERSION, ..wanted };
        for remedy in [raised, newer] {
            let healed = self.after_calm(end, Config { wanted: remedy, ..config }, born)?;
            let writes = self.node(healed).writes();
            if writes != Some(remedy) {
                return Err(format!("a calm schedule ends with {writes:?} although {remedy:?} is new"));
            }
        }
        Ok(None)
    }

    fn after_calm(&mut self, number: u32, config: Config, born: u8) -> Result<u32, String> {
        let mut number = self.step(number, Step::Deliver(config))?;
        let service = Service::well(born);
        for _ in 0..LOOKS {
            for step in [Step::Observe(service), Step::Answer(service), Step::Probe(service)] {
                number = self.step(number, step)?;
            }
        }
        Ok(number)
    }

    /// What writes goes on under the same key id after a restart, if one root key or the cache opens its record and none
    /// says no; as its row of the table says.
    fn goes_on_after_a_restart(&mut self, node: &Node) -> Result<(), String> {
        // With another fault in it, this would be found first, whatever that is.
        if !matches!(self.setup.mutation, Mutation::None | Mutation::NeverResumes) {
            return Ok(());
        }
        let Some(kek) = node.can_resume() else { return Ok(()) };
        let restarted = node.after(Step::Restart, &self.setup)?;
        if !self.restarted.insert(restarted.clone()) {
            return Ok(());
        }
        let all = || ILLS.into_iter().chain([Health::Up]);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let (service, keys) = (Service { a, b, born: kek.born }, kek.policy.keys);
            // What is not asked makes no difference.
            if keys.each().count() == 1 && a != b {
                continue;
            }
            let mut node = restarted.clone();
            for step in [Step::Observe(service), Step::Answer(service), Step::Probe(service)] {
                node = node.after(step, &self.setup)?;
            }
            let refused = keys.each().any(|key| service.of(key) == Health::Refused);
            let opens = service.usable(keys) != Keys::NONE || self.setup.cache;
            let goes_on = node.machine.active() == Some(&policy(kek.policy));
            if node.delivered().wanted == kek.policy && goes_on != (opens && !refused) {
                return Err(format!("{kek:?} goes on after a restart under {service:?}: {goes_on}"));
            }
            let state = match service.not_usable(keys).map(|trouble| trouble.kind) {
                None => State::Well,
                Some(TroubleKind::Credential) => State::Credential,
                Some(_) => State::Outage,
            };
            if goes_on && node.machine.row(NOW).state != state {
                return Err(format!("after a restart under {service:?}: {:?}", node.machine.row(NOW).state));
            }
        }
        Ok(())
    }

    /// A root key that stays with its no costs what is sealed, whether anything is active or not.
    fn is_wiped_in_the_end(&self, node: &Node) -> Result<(), String> {
        if self.setup.rules.on_refused != OnRefused::Wipe
            || !matches!(self.setup.mutation, Mutation::None | Mutation::OnlyTheActiveIsProbed)
            || !node.is_sealed_and_probed()
        {
            return Ok(());
        }
        let service = Service { a: Health::Refused, b: Health::Refused, born: 0 };
        let mut node = node.clone();
        for _ in 0..LOOKS {
            for step in [Step::Observe(service), Step::Answer(service), Step::Probe(service)] {
                node = node.after(step, &self.setup)?;
            }
        }
        if node.is_sealed() { Err("what is sealed outlives a root key's no".into()) } else { Ok(()) }
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    fn what_can_happen(&self, world: &World, bounds: Bounds) -> Vec<(Happening, World)> {
        let mut all = Vec::new();
        self.moves(world, &mut all);
        if let Some(order) = bounds.plan {
            self.steps_of_the_plan(world, order, &mut all);
        }
        outages(world, bounds, &mut all);
        for (index, number) in world.nodes.iter().enumerate() {
            // Nodes in the same state do the same.
            if index > 0 && world.nodes[index - 1] == *number {
                continue;
            }
            let node = self.node(*number);
            let mut steps = vec![Step::Observe(world.service)];
            if node.delivered() != world.config {
                steps.push(Step::Deliver(world.config));
            }
            if node.is_preparing() {
                steps.push(Step::Answer(world.service));
            }
            if node.is_active() {
                steps.push(Step::Probe(world.service));
            }
            all.extend(steps.into_iter().map(|step| (Happening::Node(index, step), world.clone())));
            if world.faults > 0 {
                for step in [Step::Restart, Step::RestartWithoutLedger, Step::ReadPlanted] {
                    let after = World { faults: world.faults - 1, ..world.clone() };
                    all.push((Happening::Node(index, step), after));
                }
            }
        }
        all
    }

    fn moves(&self, world: &World, all: &mut Vec<(Happening, World)>) {
        if world.moves == 0 {
            return;
        }
        let now = world.config.wanted;
        let mut moved = |happening, wanted| {
            let config = Config { wanted, ..world.config };
            all.push((happening, World { config, moves: world.moves - 1, ..world.clone() }));
        };
        moved(Happening::Activate, Wanted { version: now.version + 1, ..now });
        moved(Happening::RaiseEpoch, Wanted { epoch: now.epoch + 1, ..now });
        if now.version > 1 {
            moved(Happening::RollBack, Wanted { version: now.version - 1, ..now });
        }
    }

    fn steps_of_the_plan(&self, world: &World, order: Order, all: &mut Vec<(Happening, World)>) {
        let nodes: Vec<_> = world.nodes.iter().map(|number| self.node(*number)).collect();
        let waits = if self.setup.mutation == Mutation::WritesBeforeReaders { Order::Hasty } else { order };
        if plan::may_go_on(waits, world.step, &nodes, &world.data) {
            let step = world.step + 1;
            all.push((Happening::NextStep, World { step, config: plan::config(step), ..world.clone() }));
        }
        let (born, wanted) = (world.service.born, world.config.wanted);
        if born != DESTROYED && plan::may_destroy(order, world.step, &nodes, &world.data) {
            let service = Service { a: Health::Refused, born: DESTROYED, ..world.service };
            all.push((Happening::DestroyA, World { service, ..world.clone() }));
        }
        // It reads each object through any of the nodes and writes it again.
        let reports_it = nodes.iter().all(|node| node.writes() == Some(wanted));
        let reads = |node: &&Node, kek: &Kek| {
            kek.opens_with(born) != Keys::NONE && node.lacks(*kek, born) == Keys::NONE
        };
        let all_read = nodes.iter().all(|node| world.data.iter().all(|kek| reads(node, kek)));
        if reports_it && all_read && world.data.iter().any(|kek| kek.policy != wanted) {
            let mut after = World { data: Vec::new(), ..world.clone() };
            for node in nodes {
                after.writes(node.seals_with());
            }
            all.push((Happening::Migrate, after));
        }
    }

    fn step(&mut self, number: u32, step: Step) -> Result<u32, String> {
        if let Some(known) = self.steps.get(&(number, step)) {
            return known.clone();
        }
        let after = self.node(number).after(step, &self.setup).and_then(|node| {
            if !self.numbers.contains_key(&node) {
                self.goes_on_after_a_restart(&node)?;
                self.is_wiped_in_the_end(&node)?;
            }
            Ok(self.number(node))
        });
        self.steps.insert((number, step), after.clone());
        after
    }

    fn number(&mut self, node: Node) -> u32 {
        let node = Rc::new(node);
        let new = u32::try_from(self.nodes.len()).unwrap();
        *self.numbers.entry(node).or_insert_with_key(|node| {
            self.nodes.push(node.clone());
            new
        })
    }
}

impl World {
    fn writes(&mut self, kek: Option<Kek>) {
        if let Some(kek) = kek
            && let Err(place) = self.data.binary_search(&kek)
        {
            self.data.insert(place, kek);
        }
    }
}

fn outages(world: &World, bounds: Bounds, all: &mut Vec<(Happening, World)>) {
    let (now, is_destroyed) = (world.service, world.service.born == DESTROYED);
    let has_b = bounds.plan.is_some() || bounds.keys == Keys::BOTH;
    let mut turn = |happening, service, cost| {
        all.push((happening, World { service, faults: world.faults - cost, ..world.clone() }));
    };
    if now.a != Health::Up && !is_destroyed {
        turn(Happening::A(Health::Up), Service { a: Health::Up, ..now }, 0);
    }
    if now.b != Health::Up {
        turn(Happening::B(Health::Up), Service { b: Health::Up, ..now }, 0);
    }
    if world.faults == 0 {
        return;
    }
    if !is_destroyed {
        turn(Happening::MakeAAgain, Service { born: now.born + 1, ..now }, 1);
        for health in ILLS {
            turn(Happening::A(health), Service { a: health, ..now }, 1);
        }
    }
    if has_b {
        for health in [Health::Unreachable, Health::Refused] {
            turn(Happening::B(health), Service { b: health, ..now }, 1);
        }
    }
}

/// The way there, step by step.
fn told(queue: &[(World, usize, Happening)], at: usize, last: Option<Happening>, broken: &str) -> String {
    let told = |happening: &Happening| match happening {
        Happening::A(health) => format!("A is {health:?}"),
        Happening::B(health) => format!("B is {health:?}"),
        other => format!("{other:?}"),
    };
    let mut way: Vec<String> = last.iter().map(told).collect();
    let mut at = at;
    while at != 0 {
        way.push(told(&queue[at].2));
        at = queue[at].1;
    }
    way.reverse();
    format!("{broken}, after {} steps:\n  {}", way.len(), way.join("\n  "))
}
