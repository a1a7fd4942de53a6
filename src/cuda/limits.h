// What plans may count on: the device, and the code that it runs, which may have been compiled for an older one. Host
// code without CUDA, so that plans are tested on any machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace foretoken::cuda {

// The architecture that the kernels in use were compiled for, and what they use of it.
struct KernelCode {
  int architecture = 0;  // 80, 86, 89, 90, 120
  bool wgmma = false;    // compiled for exactly sm_90a
  bool dependent_launch = false;
  bool from_text = false;  // the driver compiled it when the library was loaded
};

struct Limits {
  KernelCode code;
  int multiprocessors = 1;
  size_t block_shared = 0, multiprocessor_shared = 0;  // bytes of shared memory
};

inline constexpr size_t kReservedShared = 1024;  // of every block, by the driver
// Of a block on every device that releases are built for: what kernels may ask for without a plan.
inline constexpr size_t kLeastShared = 99 * 1024;

// Of an architecture; unknown ones have what the device says.
inline size_t multiprocessor_shared_of(int architecture) {
  switch (architecture) {
    case 80:
    case 87:
      return 164 * 1024;
    case 86:
    case 89:
    case 120:
    case 121:
      return 100 * 1024;
    case 90:
    case 100:
    case 103:
    case 110:
      return 228 * 1024;
    default:
      return SIZE_MAX;
  }
}

// Plans are those of the architecture compiled for, where the device has as much: what runs on one card can be tried on
// another. `most_shared` of a block: 0 is no limit of its own.
inline Limits limited(Limits device, size_t most_shared) {
  const size_t all = multiprocessor_shared_of(device.code.architecture);
  device.multiprocessor_shared = std::min(device.multiprocessor_shared, all);
  device.block_shared = std::min(device.block_shared, all - kReservedShared);
  if (most_shared > 0) {
    device.block_shared = std::min(device.block_shared, most_shared);
    device.multiprocessor_shared = std::min(device.multiprocessor_shared, most_shared + kReservedShared);
  }
  return device;
}

// "sm_90a", or "sm_80, compiled by the driver".
inline std::string name_of(const KernelCode& code) {
  return "sm_" + std::to_string(code.architecture) + (code.wgmma ? "a" : "") +
         (code.from_text ? ", compiled by the driver" : "");
}

}  // namespace foretoken::cuda
