//! What moves towards what is to be, in a period: bounded, and never to where there is no room.
//!
//! What is to come near is promoted, what is to go far demoted. In the order in which they are made:
//!
//! 1. promotions into what is free, floors before others;
//! 2. demotions: as much as must go for the host's reserve and for guests' files, and as much again as comes near after them;
//! 3. promotions into what these leave. 2 and 3 take turns, a step at a time: so what is needed comes near from the beginning of the period on, not from its middle, and there is room where far memory is full.
//!
//! At no step is less free than is kept. Demotions are from the end of the line, promotions from its beginning. Nothing is demoted that nobody needs the room of: that
//! is what makes the memory that moves the least there can be for the targets.
//!
//! Nodes: a piece comes near to where its guest has most, as long as there is room, and goes to the far node that is nearest to it. Pieces are whole huge pages ([`GRAIN`]), as parts of one would have to be split.

/// Memory moves by pieces of this, bytes.
pub const GRAIN: u64 = 2 << 20;
/// So often memory goes far and comes near in turn in a period, at the most, or twice that where guests' shares end in between.
const TURNS: usize = 64;

/// By what moves are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// All moves of this period, bytes.
    pub budget: u64,
    /// The least change of a guest's that is made, bytes.
    pub step: u64,
    /// Local memory that stays free for the host.
    pub reserve: u64,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// It is of the slower tier.
    pub far: bool,
    /// What nobody has.
    pub free: u64,
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its nodes.
    pub nodes: &'a [Node],
    /// How far they are from each other, row by row; empty where nobody knows.
    pub distances: &'a [u32],
}

/// Who moves.
#[derive(Clone, Copy, Debug)]
pub struct Guests<'a> {
    /// What each may move from each node, guest by guest.
    pub on: &'a [u64],
    /// What of each is local.
    pub local: &'a [u64],
    /// What of it is to be.
    pub target: &'a [u64],
    /// What is to be by floors.
    pub floors: &'a [u64],
    /// From the first to the last: who presses, and then the others.
    pub line: &'a [usize],
    /// The first so many of these press.
    pub pressing: usize,
}

/// What guests' files have of the room, beside guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// What they lack of their leasts.
    pub leasts: u64,
    /// What they lack beyond that.
    pub wishes: u64,
    /// What they lack together, when those of them that are to have less have given it back.
    pub more: u64,
}

/// A piece that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose, by place.
    pub guest: usize,
    /// From which node, by place.
    pub from: usize,
    /// To which.
    pub to: usize,
    /// How much.
    pub bytes: u64,
}

/// Makes moves. Buffers: what is in them before is of no consequence.
#[derive(Clone, Debug, Default)]
pub struct Mover {
    /// In the order in which they are made.
    pub pieces: Vec<Piece>,
    /// What guests' files may have of what is free.
    pub files: u64,
    /// What would yet have to move for all to be as it is to be.
    pub left: u64,
    /// What is to come near, and go far, by guest.
    near: Vec<u64>,
    far: Vec<u64>,
    on: Vec<u64>,
    free: Vec<u64>,
    /// Of what is put in turns.
    turned: Vec<Piece>,
    before: Vec<u64>,
}

/// What comes before what, when all is wanted at once.
struct Needs {
    floors: u64,
    pressing: u64,
    rest: u64,
    far: u64,
}

impl Needs {
    fn near(&self) -> u64 {
        let sum = self.floors.saturating_add(self.pressing);
        sum.saturating_add(self.rest) / GRAIN * GRAIN
    }
}

impl Mover {
    /// What moves in a period.
    pub fn plan(&mut self, host: &Host<'_>, guests: &Guests<'_>, files: Files, by: &Settings) {
        self.pieces.clear();
        self.on.clear();
        self.on.extend_from_slice(guests.on);
        self.free.clear();
        self.free.extend(host.nodes.iter().map(|node| node.free));
        let needs = self.needs(guests, by.step);
        let near = needs.near();
        let free = self.local_free(host);
        // Below the reserve all goes to the host; beside it a step stays free, so that a host whose own need wavers by less isn't followed.
        let spare = free.saturating_sub(by.reserve);
        let room = spare.saturating_sub(by.step);
        let mut budget = by.budget / GRAIN * GRAIN;
        self.files = share(spare, room, budget, &needs, files);

        let needed = near.saturating_add(files.more).saturating_add(by.reserve);
        let far = needs.far.min(up(needed.saturating_sub(free)));
        let into_free = near.min(room.saturating_sub(self.files)).min(budget);
        let kept = by.reserve.saturating_add(self.files);
        let floors = needs.floors > 0;
        let came = self.promote(host, guests, (floors, into_free, kept));
        budget -= came;
        let lacks = near - came;
        // What goes far for no guest's sake, and then one for one.
        let alone = far.saturating_sub(lacks).min(budget);
        let swapped = lacks
            .min(far - alone)
            .min((budget - alone) / 2 / GRAIN * GRAIN);
        let start = self.pieces.len();
        self.before.clone_from(&self.free);
        let (mut gone, mut back) = (0, 0);
        for _ in 0..TURNS {
            let out = self.demote(host, guests, alone + swapped - gone);
            gone += out;
            // Where far memory is full, what comes near makes room there; the step that stays free is what it takes to begin with.
            let most = (gone.saturating_sub(alone)).saturating_add(by.step);
            let wanted = swapped.min(most).saturating_sub(back);
            let more = self.promote(host, guests, (floors, wanted, kept));
            back += more;
            if out == 0 && more == 0 {
                break;
            }
        }
        self.left = (near - came - back).saturating_add(far - gone);
        self.take_turns(host, start, kept, by.step.max(swapped / TURNS as u64));
    }

    /// Has pieces take turns of which all that go far are first: as soon as there is room for another, that one comes. So much stays free.
    fn take_turns(&mut self, host: &Host<'_>, start: usize, kept: u64, turn: u64) {
        let far = |piece: &Piece| host.nodes[piece.to].far;
        let turned = &self.pieces[start..];
        let count = turned.iter().take_while(|piece| far(piece)).count();
        if turned[count..].iter().any(far) || count == turned.len() {
            return;
        }
        let turn = up(turn.max(1));
        self.turned.clear();
        self.turned.extend_from_slice(turned);
        self.pieces.truncate(start);
        let (out, back) = self.turned.split_at_mut(count);
        let mut back = back.iter_mut().peekable();
        let (pieces, free) = (&mut self.pieces, &mut self.before);
        for piece in out {
            while piece.bytes > 0 {
                let bytes = piece.bytes.min(turn);
                make(pieces, start, free, piece, bytes);
                // Where room is on another node than the next one comes to, more has to go first.
                while let Some(next) = back.peek_mut() {
                    let room = local(host, free).saturating_sub(kept).min(free[next.to]);
                    let bytes = next.bytes.min(room) / GRAIN * GRAIN;
                    if bytes == 0 {
                        break;
                    }
                    make(pieces, start, free, next, bytes);
                    if next.bytes == 0 {
                        back.next();
                    }
                }
            }
        }
        for next in back {
            let bytes = next.bytes;
            make(pieces, start, free, next, bytes);
        }
    }

    /// What guests lack and have too much of, crumbs left out.
    fn needs(&mut self, guests: &Guests<'_>, step: u64) -> Needs {
        let count = guests.line.len();
        for buffer in [&mut self.near, &mut self.far] {
            buffer.clear();
            buffer.resize(count, 0);
        }
        let mut needs = Needs {
            floors: 0,
            pressing: 0,
            rest: 0,
            far: 0,
        };
        for (place, &at) in guests.line.iter().enumerate() {
            let (has, target) = (guests.local[at], guests.target[at]);
            let worth = |change: u64| {
                if change < step {
                    0
                } else {
                    change / GRAIN * GRAIN
                }
            };
            self.near[at] = worth(target.saturating_sub(has));
            self.far[at] = worth(has.saturating_sub(target));
            let floor = guests.floors[at].saturating_sub(has).min(self.near[at]);
            let beyond = self.near[at] - floor;
            let (pressing, rest) = if place < guests.pressing {
                (beyond, 0)
            } else {
                (0, beyond)
            };
            needs.floors = needs.floors.saturating_add(floor);
            needs.pressing = needs.pressing.saturating_add(pressing);
            needs.rest = needs.rest.saturating_add(rest);
            needs.far = needs.far.saturating_add(self.far[at]);
        }
        needs
    }

    /// Moves so much near, floors first, if any are lacking, from the beginning of the line; so much stays free. How much moves.
    fn promote(
        &mut self,
        host: &Host<'_>,
        guests: &Guests<'_>,
        (lacking, bytes, kept): (bool, u64, u64),
    ) -> u64 {
        let mut left = bytes.min(self.local_free(host).saturating_sub(kept));
        let before = left;
        for floors in [true, false] {
            if floors && !lacking {
                continue;
            }
            for &at in guests.line {
                if left < GRAIN {
                    return before - left;
                }
                let mut wanted = self.near[at];
                if floors {
                    // What came already came to the floor first.
                    let came = guests.target[at].saturating_sub(guests.local[at]);
                    let came = came.saturating_sub(self.near[at]);
                    let floor = guests.floors[at].saturating_sub(guests.local[at]);
                    wanted = wanted.min(up(floor.saturating_sub(came)));
                }
                let moved = self.shift(host, at, true, wanted.min(left));
                self.near[at] -= moved;
                left -= moved;
            }
        }
        before - left
    }

    /// Moves so much far, from the end of the line. How much moves.
    fn demote(&mut self, host: &Host<'_>, guests: &Guests<'_>, bytes: u64) -> u64 {
        let mut left = bytes;
        let before = left;
        for &at in guests.line.iter().rev() {
            if left < GRAIN {
                break;
            }
            let moved = self.shift(host, at, false, self.far[at].min(left));
            self.far[at] -= moved;
            left -= moved;
        }
        before - left
    }

    /// Moves so much of a guest, piece by piece. How much moves.
    fn shift(&mut self, host: &Host<'_>, guest: usize, near: bool, bytes: u64) -> u64 {
        let count = host.nodes.len();
        let mut left = bytes / GRAIN * GRAIN;
        let before = left;
        while left >= GRAIN {
            let on = &self.on[guest * count..][..count];
            let movable = |node: &usize| host.nodes[*node].far == near && on[*node] >= GRAIN;
            // From where it has most.
            let from = (0..count).filter(movable);
            let Some(from) = from.min_by_key(|node| (std::cmp::Reverse(on[*node]), *node)) else {
                break;
            };
            let room = |node: &usize| host.nodes[*node].far != near && self.free[*node] >= GRAIN;
            let to = (0..count).filter(room);
            let rank = |node: usize| {
                let distance = host.distances.get(from * count + node).copied();
                let home = if near { on[node] } else { 0 };
                (std::cmp::Reverse(home), distance.unwrap_or(u32::MAX), node)
            };
            let Some(to) = to.min_by_key(|node| rank(*node)) else {
                break;
            };
            let most = left.min(on[from]).min(self.free[to]);
            let bytes = most / GRAIN * GRAIN;
            self.on[guest * count + from] -= bytes;
            self.free[from] = self.free[from].saturating_add(bytes);
            self.free[to] -= bytes;
            left -= bytes;
            self.pieces.push(Piece {
                guest,
                from,
                to,
                bytes,
            });
        }
        before - left
    }

    fn local_free(&self, host: &Host<'_>) -> u64 {
        local(host, &self.free)
    }
}

fn local(host: &Host<'_>, free: &[u64]) -> u64 {
    let nodes = host.nodes.iter().zip(free);
    let local = nodes.filter(|(node, _)| !node.far);
    local.fold(0, |sum, (_, free)| sum.saturating_add(*free))
}

/// What files may have of what is free, by the line: after floors their leasts, after guests that press their wishes.
fn share(spare: u64, room: u64, budget: u64, needs: &Needs, files: Files) -> u64 {
    let (mut left, mut budget) = (spare, budget);
    let taken = spare - room;
    let mut guests = |left: &mut u64, wanted: u64| {
        // Guests leave a step.
        let bytes = wanted.min(budget).min(left.saturating_sub(taken));
        budget -= bytes;
        *left -= bytes;
    };
    guests(&mut left, needs.floors);
    let leasts = files.leasts.min(left);
    left -= leasts;
    guests(&mut left, needs.pressing);
    leasts + files.wishes.min(left)
}

/// Makes so much of a piece, as a part of the one before where that is its beginning.
fn make(pieces: &mut Vec<Piece>, start: usize, free: &mut [u64], piece: &mut Piece, bytes: u64) {
    if bytes == 0 {
        return;
    }
    piece.bytes -= bytes;
    free[piece.from] = free[piece.from].saturating_add(bytes);
    free[piece.to] = free[piece.to].saturating_sub(bytes);
    let way = |piece: &Piece| (piece.guest, piece.from, piece.to);
    match pieces[start..].last_mut() {
        Some(last) if way(last) == way(piece) => last.bytes += bytes,
        _ => pieces.push(Piece { bytes, ..*piece }),
    }
}

/// To whole pieces.
fn up(bytes: u64) -> u64 {
    bytes.div_ceil(GRAIN).saturating_mul(GRAIN)
}
