// SHA-256 over bytes that arrive in parts: names of things that nobody, not even on purpose, can give to two contents.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace foretoken {

using Digest = std::array<std::byte, 32>;

// 64 hexadecimal digits.
std::string hex(const Digest& digest);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& update(std::span<const std::byte> bytes);
  // Of everything so far; more may follow.
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foretoken
