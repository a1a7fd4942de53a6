// Copies into shared memory that run by themselves, and the barriers that tell when they are done.
//
// A request is made by the first kRequesters lanes of a warp together: barrier_expect, any number of bulk_copy,
// barrier_requested; its barrier was made for kRequesters arrivals. One lane has sm_90 copy whole blocks of bytes;
// before it, each of 32 copies sixteen bytes at a time and arrives when its own are there. Who waits sees no
// difference.
#pragma once

#include "cuda/device.cuh"

namespace foretoken::cuda {

constexpr int kRequesters = kBulkCopies ? 1 : 32;

FORETOKEN_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// What the compiler would rather compute again at every use.
FORETOKEN_DEVICE uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Copies of a thread's own, and the wait for all but its last kPending groups of them.
FORETOKEN_DEVICE void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
FORETOKEN_DEVICE void copy_16(uint32_t to, const void* from, bool exists) {  // else zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
FORETOKEN_DEVICE void copy_4(uint32_t to, const void* from, bool exists) {  // else a zero
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
FORETOKEN_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
FORETOKEN_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

FORETOKEN_DEVICE void barrier_init(uint64_t& barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
FORETOKEN_DEVICE void barrier_arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

#if FORETOKEN_HAS_BULK_COPIES

// By the thread that made barriers.
FORETOKEN_DEVICE void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Between the last access of room and its next request, before the threads meet.
FORETOKEN_DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FORETOKEN_DEVICE void barrier_expect(uint64_t& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
// Addresses and bytes are multiples of sixteen.
FORETOKEN_DEVICE void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
FORETOKEN_DEVICE void barrier_requested(uint64_t&) {}

#else

FORETOKEN_DEVICE void fence_barriers() {}
FORETOKEN_DEVICE void fence_copies() {}
FORETOKEN_DEVICE void barrier_expect(uint64_t&, uint32_t) {}
FORETOKEN_DEVICE void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t) {
#pragma unroll 4
  for (uint32_t at = (threadIdx.x & 31) * 16; at < bytes; at += 512)
    copy_16(to + at, static_cast<const std::byte*>(from) + at);
}
FORETOKEN_DEVICE void barrier_requested(uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

#endif

// Where one lane has made a warp's barriers and the warp's requesters use them next.
FORETOKEN_DEVICE void meet_requesters() {
  if constexpr (kRequesters > 1) __syncwarp();
}

FORETOKEN_DEVICE void barrier_wait(uint64_t& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
#if FORETOKEN_HAS_BULK_COPIES
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace foretoken::cuda
