//! Sampling by the kernel, with `perf_event_open(2)`.

use super::thread_set::ThreadSet;
use super::{PERIOD, Sampler};
use crate::aggregate::SampleAggregator;
use crate::queue::SampleHeader;
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag};
use std::io;

/// Size of a thread's sample buffer, in bytes: 100 ms of samples with the deepest stacks.
const BUFFER_BYTES: usize = 64 << 10;
/// Values from here on are no addresses in a call chain: they state the context of the entries that
/// follow.
const CONTEXT_FROM: u64 = (-4_095_i64) as u64;

/// A kernel sampler for each thread.
pub(super) struct PerfSampler(ThreadSet<perf_event::Sampler>);

impl PerfSampler {
    /// Starts to sample the existing threads.
    pub(super) fn begin() -> io::Result<Self> {
        let mut sampler = Self(ThreadSet::new(sampler_of)?);
        sampler.attach_new_threads();
        Ok(sampler)
    }
}

impl Sampler for PerfSampler {
    fn attach_new_threads(&mut self) {
        self.0.refresh();
        self.0.attach_new(sampler_of);
    }

    fn drain(&mut self, into: &mut SampleAggregator) {
        self.0.visit(|sampler| {
            while let Some(record) = sampler.next_record() {
                add_record(&record, into);
            }
        });
    }

    fn unattached(&self) -> usize {
        self.0.unattached()
    }
}

fn add_record(record: &perf_event::Record<'_>, into: &mut SampleAggregator) {
    match record.parse_record() {
        Ok(Record::Sample(sample)) => {
            let (at_ns, thread) = (sample.time().unwrap_or(0), sample.tid().unwrap_or(0));
            let addresses = addresses(sample.callchain().unwrap_or_default());
            into.add(SampleHeader { at_ns, thread, weight: 1 }, &addresses);
        }
        Ok(Record::Lost(lost)) => into.add_lost(lost.lost),
        Ok(Record::LostSamples(lost)) => into.add_lost(lost.lost),
        Ok(_) => {}
        Err(_) => into.add_lost(1),
    }
}

fn sampler_of(thread: u32) -> io::Result<perf_event::Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .observe_pid(thread.cast_signed())
        .any_cpu()
        .include_kernel()
        .sample_period(PERIOD.as_nanos() as u64)
        .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CALLCHAIN)
        .clockid(Clock::MONOTONIC);
    let mut sampler = builder.build()?.sampled(BUFFER_BYTES)?;
    sampler.enable()?;
    Ok(sampler)
}

/// Addresses of a call chain, from the leaf to the root: those of the call instructions, not return
/// addresses.
fn addresses(chain: &[u64]) -> Vec<u64> {
    let mut addresses = Vec::with_capacity(chain.len());
    // The first entry of each context is the interrupted instruction, or the one that entered the
    // kernel. Both are the instruction itself.
    let mut is_first = true;
    for &address in chain {
        if address >= CONTEXT_FROM {
            is_first = true;
            continue;
        }
        // A walk that ends in something that is no frame may yield any value, including 0.
        addresses.push(if is_first { address } else { address.saturating_sub(1) });
        is_first = false;
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_addresses_of_calls() {
        const CONTEXT_KERNEL: u64 = (-128_i64) as u64;
        const CONTEXT_USER: u64 = (-512_i64) as u64;
        let kernel = 0xffff_ffff_8100_0000;
        let chain = [CONTEXT_KERNEL, kernel, kernel + 9, CONTEXT_USER, 100, 200, 300, 0];
        assert_eq!(addresses(&chain), [kernel, kernel + 8, 100, 199, 299, 0]);
        assert!(addresses(&[]).is_empty());
    }
}
