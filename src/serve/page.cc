// The policy of a page, from the page.
#include "serve/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>

namespace foretoken::serve {
namespace {

std::string hash_source(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  const int length = ::EVP_EncodeBlock(base64.data(), hash.data(), static_cast<int>(hash.size()));
  return fmt::format(" 'sha256-{}'",
                     std::string_view(reinterpret_cast<const char*>(base64.data()), static_cast<size_t>(length)));
}

// The hashes of all elements of that name, or 'none'.
std::string sources(std::string_view page, std::string_view name) {
  const std::string opening = fmt::format("<{}", name), closing = fmt::format("</{}>", name);
  std::string out;
  for (size_t at = page.find(opening); at != page.npos; at = page.find(opening, at)) {
    const size_t begin = page.find('>', at), end = page.find(closing, at);
    if (begin == page.npos || end == page.npos) break;
    out += hash_source(page.substr(begin + 1, end - begin - 1));
    at = end;
  }
  return out.empty() ? " 'none'" : out;
}

}  // namespace

std::string page_policy(std::string_view page) {
  return fmt::format(
      "default-src 'none'; script-src{}; style-src{}; img-src data:; connect-src 'self'; base-uri 'none'; form-action "
      "'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      sources(page, "script"), sources(page, "style"));
}

}  // namespace foretoken::serve
