// OpenSSL does the work.
#include "base/digest.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace foretoken {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CHECK(state_->context != nullptr);
  CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
  return *this;
}

Digest Sha256::digest() const {
  State copy;
  Digest digest;
  unsigned int size = 0;
  CHECK(EVP_MD_CTX_copy_ex(copy.context, state_->context) == 1);
  CHECK(EVP_DigestFinal_ex(copy.context, reinterpret_cast<unsigned char*>(digest.data()), &size) == 1);
  CHECK(size == digest.size());
  return digest;
}

std::string hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : digest) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

}  // namespace foretoken
