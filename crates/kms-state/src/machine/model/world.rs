//! Nodes, the admin and the key service; everything that can happen, breadth first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use super::node::{Health, Mutation, Node, Step, Wanted};
use crate::outage::Rules;

/// How many looks a calm schedule has to come to its end.
const LOOKS: usize = 3;
/// Which nobody has seen.
const NEW_VERSION: u8 = 99;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    nodes: usize,
    /// What the admin does: activate, roll back, raise the epoch.
    moves: u8,
    /// What goes wrong: outages, restarts, lost ledgers, planted bytes, a key that is made again.
    faults: u8,
}

impl Bounds {
    pub(super) const fn new(nodes: usize, moves: u8, faults: u8) -> Self {
        Self { nodes, moves, faults }
    }
}

/// Nodes in order of their numbers: which of them is which makes no difference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    wanted: Wanted,
    /// How often the key was made again.
    born: u8,
    health: Health,
    moves: u8,
    faults: u8,
    nodes: Vec<u32>,
}

/// Shown on the way to a broken promise: nodes are sorted anew after each, so that a position is not a name.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Start,
    Activate,
    RollBack,
    RaiseEpoch,
    MakeKeyAgain,
    Turn(Health),
    Node(usize, Step),
}

/// All nodes that were met, by number, and where each step leads.
pub(super) struct Model {
    rules: Rules,
    mutation: Mutation,
    nodes: Vec<Rc<Node>>,
    numbers: HashMap<Rc<Node>, u32>,
    steps: HashMap<(u32, Step), Result<u32, String>>,
    calmed: HashMap<(u32, Wanted, u8), Result<Option<Wanted>, String>>,
}

impl Model {
    pub(super) fn new(rules: Rules, mutation: Mutation) -> Self {
        Self {
            rules,
            mutation,
            nodes: Vec::new(),
            numbers: HashMap::new(),
            steps: HashMap::new(),
            calmed: HashMap::new(),
        }
    }

    /// How many states of a node were met.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many states there are, or the shortest way to one that breaks a promise.
    pub(super) fn explore(&mut self, bounds: Bounds) -> Result<usize, String> {
        let wanted = Wanted { epoch: 0, version: 1 };
        let start = self.number(Node::new(self.rules, wanted));
        let start = World {
            wanted,
            born: 0,
            health: Health::Up,
            moves: bounds.moves,
            faults: bounds.faults,
            nodes: vec![start; bounds.nodes],
        };
        let mut known = HashMap::from([(start.clone(), ())]);
        let mut queue = vec![(start, 0, Happening::Start)];
        let mut next = 0;
        while next < queue.len() {
            let world = queue[next].0.clone();
            self.agree_in_the_end(&world).map_err(|broken| told(&queue, next, None, &broken))?;
            for (happening, mut after) in self.what_can_happen(&world) {
                if let Happening::Node(index, step) = happening {
                    let number = self.step(world.nodes[index], step);
                    after.nodes[index] =
                        number.map_err(|broken| told(&queue, next, Some(happening), &broken))?;
                }
                after.nodes.sort_unstable();
                if let Entry::Vacant(new) = known.entry(after) {
                    queue.push((new.key().clone(), next, happening));
                    new.insert(());
                }
            }
            next += 1;
        }
        Ok(queue.len())
    }

    /// From here, a schedule without faults leads all nodes to the same key id, or to a report whose remedy does.
    fn agree_in_the_end(&mut self, world: &World) -> Result<(), String> {
        let mut agreed = None;
        for number in &world.nodes {
            if let Some(active) = self.calmed(*number, world.wanted, world.born)?
                && *agreed.get_or_insert(active) != active
            {
                return Err(format!(
                    "a calm schedule ends with {active:?} on one node and {agreed:?} on another"
                ));
            }
        }
        Ok(())
    }

    /// What a node writes under at the end of a schedule without faults. `None` if it says why that is not what was
    /// wanted; a raised epoch or a new version must then make all well.
    fn calmed(&mut self, number: u32, wanted: Wanted, born: u8) -> Result<Option<Wanted>, String> {
        if let Some(known) = self.calmed.get(&(number, wanted, born)) {
            return known.clone();
        }
        let calmed = self.calm(number, wanted, born);
        self.calmed.insert((number, wanted, born), calmed.clone());
        calmed
    }

    fn calm(&mut self, number: u32, wanted: Wanted, born: u8) -> Result<Option<Wanted>, String> {
        let end = self.after_calm(number, wanted, born)?;
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
            let healed = self.after_calm(end, remedy, born)?;
            let writes = self.node(healed).writes();
            if writes != Some(remedy) {
                return Err(format!("a calm schedule ends with {writes:?} although {remedy:?} is new"));
            }
        }
        Ok(None)
    }

    fn after_calm(&mut self, number: u32, wanted: Wanted, born: u8) -> Result<u32, String> {
        let mut number = self.step(number, Step::Deliver(wanted))?;
        for _ in 0..LOOKS {
            for step in
                [Step::Observe(Health::Up), Step::Answer(Health::Up, born), Step::Probe(Health::Up, born)]
            {
                number = self.step(number, step)?;
            }
        }
        Ok(number)
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    fn what_can_happen(&self, world: &World) -> Vec<(Happening, World)> {
        let mut all = Vec::new();
        let Wanted { epoch, version } = world.wanted;
        if world.moves > 0 {
            let mut moved = |happening, wanted| {
                all.push((happening, World { wanted, moves: world.moves - 1, ..world.clone() }));
            };
            moved(Happening::Activate, Wanted { epoch, version: version + 1 });
            moved(Happening::RaiseEpoch, Wanted { epoch: epoch + 1, version });
            if version > 1 {
                moved(Happening::RollBack, Wanted { epoch, version: version - 1 });
            }
        }
        if world.health != Health::Up {
            all.push((Happening::Turn(Health::Up), World { health: Health::Up, ..world.clone() }));
        }
        if world.faults > 0 {
            let faults = world.faults - 1;
            all.push((Happening::MakeKeyAgain, World { born: world.born + 1, faults, ..world.clone() }));
            for health in [Health::Unreachable, Health::Credential, Health::Refused] {
                all.push((Happening::Turn(health), World { health, faults, ..world.clone() }));
            }
        }
        for (index, number) in world.nodes.iter().enumerate() {
            // Nodes in the same state do the same.
            if index > 0 && world.nodes[index - 1] == *number {
                continue;
            }
            let node = &self.nodes[*number as usize];
            let mut steps = vec![Step::Observe(world.health)];
            if node.delivered() != world.wanted {
                steps.push(Step::Deliver(world.wanted));
            }
            if node.is_preparing() {
                steps.push(Step::Answer(world.health, world.born));
            }
            if node.is_active() {
                steps.push(Step::Probe(world.health, world.born));
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

    fn step(&mut self, number: u32, step: Step) -> Result<u32, String> {
        if let Some(known) = self.steps.get(&(number, step)) {
            return known.clone();
        }
        let after = self.nodes[number as usize].after(step, self.mutation).map(|node| self.number(node));
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

/// The way there, step by step.
fn told(queue: &[(World, usize, Happening)], at: usize, last: Option<Happening>, broken: &str) -> String {
    let told = |happening: &Happening| match happening {
        Happening::Turn(health) => format!("the key service is {health:?}"),
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
