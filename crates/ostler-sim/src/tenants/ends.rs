//! Clients' ends: who is at a client's machine, when it sends and when it reads ([`crate::load::end`]).

use ostler_model::Nanos;

use super::{ACK, END, LEFT, Tenants};
use crate::load::end::Turn;
use crate::work::Effects;

impl Tenants {
    /// Something is to be sent: a client's thread is woken for it, if it sleeps.
    pub(super) fn wake_client(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        if let Some(at) = self.clients[client].end.falls_due(now, &self.costs.end) {
            out.alarm(at, END | client as u64);
        }
    }

    /// The turn of a client's thread: where there is nothing to send it reads, and the other way round, and else it sleeps.
    pub(super) fn client_turns(&mut self, client: usize, now: Nanos, out: &mut Effects) {
        let Some(first) = self.clients[client].end.turns(now) else {
            return;
        };
        let turns = match first {
            Turn::Sends => [Turn::Sends, Turn::Reads],
            Turn::Reads => [Turn::Reads, Turn::Sends],
        };
        for turn in turns {
            let until = match turn {
                Turn::Sends => self.client_sends(client, now, out),
                Turn::Reads => self.client_reads(client, now, out),
            };
            let end = &mut self.clients[client].end;
            if let Some(until) = until {
                let next = end.goes_on(now, until, turn, &self.costs.end);
                out.alarm(next, END | client as u64);
                return;
            }
        }
        if let Some(at) = self.clients[client].end.rests(now, &self.costs.end) {
            out.alarm(at, END | client as u64);
        }
    }

    /// Sends all that is due and has room, until when, if there is any.
    fn client_sends(&mut self, client: usize, now: Nanos, out: &mut Effects) -> Option<Nanos> {
        let costs = self.costs.end;
        let receives = self.clients[client].end.receives(now);
        let told = if receives { Nanos::ZERO } else { costs.told };
        let mut until = None;
        while let Some(request) = self.clients[client].next_request(now) {
            let message = self.sets_out(client, request, now, now);
            let begins = until.unwrap_or(now.saturating_add(costs.begin));
            let leaves = begins.saturating_add(costs.send);
            let arrives = leaves.saturating_add(costs.device);
            out.alarm(arrives, LEFT | u64::from(message));
            until = Some(leaves.saturating_add(costs.sent).saturating_add(told));
        }
        until
    }

    /// Reads all that has come, until when, if there is any.
    fn client_reads(&mut self, client: usize, now: Nanos, out: &mut Effects) -> Option<Nanos> {
        let mut until = None;
        while let Some(answer) = self.clients[client].end.reads(now) {
            let read = until.unwrap_or(now).saturating_add(self.costs.end.read);
            self.answered(client, answer.due, answer.flow, read, out);
            until = Some(read);
        }
        until
    }

    /// A client has an answer, at a time: of a request that was due then.
    pub(super) fn answered(
        &mut self,
        client: usize,
        due: Nanos,
        flow: u32,
        at: Nanos,
        out: &mut Effects,
    ) {
        let load = client as u64;
        let client = &mut self.clients[client];
        if let Some(connections) = &mut client.connections {
            connections.answered(at, flow);
        }
        if let Some(acks) = &mut client.acks
            && let Some(look) = acks.hears(at, flow)
        {
            out.alarm(look.saturating_add(self.costs.wire), ACK | load);
        }
        let slo = client.spec.slo;
        let time = at.saturating_sub(due);
        client.books.answer(at, time, slo);
        if let Some(record) = client.record {
            self.records[record as usize].ended(due, Some(time));
        }
    }
}
