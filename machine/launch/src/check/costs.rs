//! What memory costs, as far as the file tells it.

use ostler_machine_memory::{Catalogue, System};
use toml::Spanned;

use super::{CORES, Checker};
use crate::error::WorldError;
use crate::raw::RawWorld;
use crate::topology::POOL;
use crate::world::{Model, World};

impl Checker<'_> {
    /// Whether what memory costs is told of all machines or of none, and makes a topology.
    pub(super) fn costs(&self, raw: &RawWorld, world: &World) -> Result<(), WorldError> {
        let machines = || raw.machine.iter().map(Spanned::get_ref);
        let told = machines().find_map(|machine| Some((machine, machine.part.as_ref()?)));
        let pool = raw.memory.as_ref().and_then(|memory| memory.pool.as_ref());
        let Some((has, told)) = told else {
            return match pool {
                Some(pool) => self.refuse(
                    pool,
                    format!(
                        "pool = \"{}\" says what the pool costs, and no machine has a part",
                        pool.get_ref()
                    ),
                    "give each machine one, like part = \"xeon-gold-6230r\", or leave `pool` out",
                ),
                None => Ok(()),
            };
        };
        if let Some(lacks) = machines().find(|machine| machine.part.is_none()) {
            return self.refuse(
                &lacks.name,
                format!(
                    "machine {} has no part, and machine {} is a {}: what memory costs is told of both or of neither",
                    lacks.name.get_ref(),
                    has.name.get_ref(),
                    told.get_ref()
                ),
                "give it one, like part = \"thunderx2-cn9980\", or take the other's out and write instruction_ns there",
            );
        }
        if let Some(pool) = pool
            && world.model != Some(Model::Shared)
        {
            let model = world
                .model
                .map_or_else(String::new, |model| model.to_string());
            return self.refuse(
                pool,
                format!("the model is {model}, and has no pool that is a device of its own"),
                "leave `pool` out, or make the model shared",
            );
        }
        let cores: u32 = (0..world.machines.len())
            .map(|number| world.width(number))
            .sum();
        if cores > CORES {
            return self.refuse(
                &machines().next_back().unwrap_or(has).cores,
                format!(
                    "with what memory costs, both machines' cores are {cores}, counting at least two of each"
                ),
                format!("give them {CORES} together, or leave each `part` out"),
            );
        }
        let Some(topology) = world.topology() else {
            return Ok(());
        };
        let catalogue = Catalogue::built_in();
        // Nothing of a model that machines share is on this process's heap.
        let made = if world.is_fused() {
            System::block_bytes(&topology, &catalogue).map(|_| ())
        } else {
            System::new(&topology, &catalogue).map(|_| ())
        };
        let Err(error) = made else {
            return Ok(());
        };
        let mut parts = machines().filter_map(|machine| machine.part.as_ref());
        let part = parts.find(|part| catalogue.part(part.get_ref()).is_none());
        let pool = pool.filter(|pool| catalogue.device(pool.get_ref()).is_none());
        let (key, at, remedy) = match (part, pool) {
            (None, Some(pool)) => (
                "pool",
                pool,
                format!("or leave `pool` out, and it is a {POOL}"),
            ),
            (part, _) => (
                "part",
                part.unwrap_or(told),
                "or leave `part` out, and every access costs nothing".to_owned(),
            ),
        };
        self.refuse(at, format!("{key} = \"{}\": {error}", at.get_ref()), remedy)
    }
}
