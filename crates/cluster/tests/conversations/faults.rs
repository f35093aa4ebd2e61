//! Faults and operations of operators in a conversation.

use crate::parse::Arguments;
use crate::player::Player;
use crate::world::{DiskState, Machine, PacketKind, key};
use cluster::{DialFailure, LostRange};
use std::time::Duration;

impl Player {
    pub(crate) fn strike(&mut self, name: &str, arguments: &mut Arguments) -> Result<(), String> {
        match name {
            "drop" | "refuse" | "delay" | "double" | "cut" | "break" | "isolate" | "heal" => {
                self.strike_network(name, arguments)
            }
            "disk" | "slow" | "lose-disk" | "copy-disk" | "roll-back" | "damage" => {
                self.strike_disk(name, arguments)
            }
            _ => self.strike_process(name, arguments),
        }
    }

    fn strike_network(&mut self, name: &str, arguments: &mut Arguments) -> Result<(), String> {
        let world = &mut self.world;
        match name {
            "drop" | "refuse" => {
                let (from, to) = (arguments.node()?, arguments.node()?);
                let kind = kind(&arguments.next("a kind of messages")?)?;
                let count = arguments.number("count")?.unwrap_or(1);
                let rule = world.rules.entry((from, to)).or_default();
                let counts = if name == "drop" { &mut rule.losses } else { &mut rule.refusals };
                counts.push((kind, count));
            }
            "delay" => {
                let (from, to) = (arguments.node()?, arguments.node()?);
                world.rules.entry((from, to)).or_default().delay = arguments.duration()?;
            }
            "double" => {
                let (from, to) = (arguments.node()?, arguments.node()?);
                let count = arguments.number("count")?.unwrap_or(u64::MAX);
                world.rules.entry((from, to)).or_default().doubled = count;
            }
            "cut" => {
                let (from, to) = (arguments.node()?, arguments.node()?);
                world.cut.insert((from, to));
                if !arguments.takes("one-way") {
                    world.cut.insert((to, from));
                }
            }
            "break" => {
                let (one, other) = (arguments.node()?, arguments.node()?);
                let is_of_coordinators = arguments.takes("of-coordinators");
                for (dialer, acceptor) in [(one, other), (other, one)] {
                    world.break_link(dialer, acceptor, Machine::Coordinator);
                    if !is_of_coordinators {
                        world.break_link(dialer, acceptor, Machine::Node);
                    }
                }
            }
            "isolate" => {
                let side = arguments.nodes()?;
                let others = (0..world.hosts.len()).filter(|host| !side.contains(host));
                for other in others.collect::<Vec<_>>() {
                    side.iter().for_each(|&host| world.cut_off(host, other));
                }
            }
            _ => world.heal(),
        }
        Ok(())
    }

    fn strike_disk(&mut self, name: &str, arguments: &mut Arguments) -> Result<(), String> {
        let host = arguments.node()?;
        match name {
            "disk" => self.set_disk(host, &arguments.next("a state of the disk")?)?,
            "slow" => self.world.hosts[host].store.latency = arguments.duration()?,
            "lose-disk" => {
                self.world.crash(host);
                self.world.lose_disk(host);
            }
            "copy-disk" => {
                let copy = self.world.hosts[host].store.clone();
                self.copies.insert(arguments.next("a name")?, copy);
            }
            "roll-back" => {
                let name = arguments.next("the name of a copy")?;
                let copy = self.copies.get(&name).ok_or_else(|| format!("there is no copy {name}"))?;
                self.world.crash(host);
                self.world.roll_back(host, copy);
            }
            _ => {
                // Keys are names with a number: a bare name is before them, `~` behind them.
                let after = arguments.try_next().map(|name| key(&name));
                let until = arguments.try_next().map(|name| key(&format!("{name}~")));
                self.tables += 1;
                let table = self.tables;
                self.world.hosts[host].store.damage(table, LostRange { after, until }, |_| true);
            }
        }
        Ok(())
    }

    fn set_disk(&mut self, host: usize, state: &str) -> Result<(), String> {
        let disk = match state {
            "ok" | "hung" => DiskState::Healthy,
            "full" => DiskState::Full,
            "overloaded" => DiskState::Overloaded,
            "reads-overloaded" => DiskState::ReadsOverloaded,
            "no-memory" => DiskState::NoMemory,
            "unreadable" => DiskState::Unreadable,
            "values-unreadable" => DiskState::ValuesUnreadable,
            "unwritable" => DiskState::Unwritable,
            _ => return Err(format!("{state} is no state of a disk")),
        };
        self.world.hosts[host].store.disk = disk;
        self.world.set_hung(host, state == "hung");
        Ok(())
    }

    fn strike_process(&mut self, name: &str, arguments: &mut Arguments) -> Result<(), String> {
        let world = &mut self.world;
        match name {
            "crash" => arguments.nodes()?.into_iter().for_each(|host| world.crash(host)),
            "start" => arguments.nodes()?.into_iter().for_each(|host| world.start(host)),
            "restart" => arguments.nodes()?.into_iter().for_each(|host| world.restart(host)),
            "hang" => arguments.nodes()?.into_iter().for_each(|host| world.stop(host)),
            "resume" => arguments.nodes()?.into_iter().for_each(|host| world.resume(host)),
            "suspend" => {
                let (host, duration) = (arguments.node()?, arguments.duration()?);
                world.stop(host);
                world.run(duration);
                world.hosts[host].absences += 1;
                world.resume(host);
            }
            "refuse-dials" => world.fail_dials(arguments.node()?, DialFailure::Refused),
            "accept-dials" => world.dial_failures.clear(),
            "clock" => {
                let host = arguments.node()?;
                let is_forward = match arguments.next("a direction")?.as_str() {
                    "forward" => true,
                    "back" => false,
                    direction => return Err(format!("{direction} is neither forward nor back")),
                };
                let micros = micros(arguments.duration()?);
                world.hosts[host].wall_offset_micros += if is_forward { micros } else { -micros };
            }
            "drain" | "repair" | "notice-full-disk" | "notice-free-disk" => {
                let host = arguments.node()?;
                let (now, node) = world.node_mut(host);
                match name {
                    "drain" => node.begin_drain(now),
                    "repair" => node.begin_repair(now),
                    _ => node.handle_disk_full(now, name == "notice-full-disk"),
                }
                world.carry_out_effects(host);
            }
            _ => return Err(format!("there is no command {name}")),
        }
        Ok(())
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a duration of a conversation")
}

fn kind(word: &str) -> Result<PacketKind, String> {
    Ok(match word {
        "heartbeat" => PacketKind::Heartbeat,
        "write" => PacketKind::Write,
        "read" => PacketKind::Read,
        "hint" => PacketKind::Hint,
        "scan" => PacketKind::Scan,
        "compare" => PacketKind::Compare,
        "answer" => PacketKind::Answer,
        _ => return Err(format!("{word} is no kind of messages")),
    })
}
