// File access on Linux: mmap, pread, rename; SHA-256 by OpenSSL.
#include "base/file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace foretoken {
namespace {

Error io_error(const std::filesystem::path& path, const char* action) {
  const int code = errno;
  const ErrorCode kind = code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {kind, path.string() + ": cannot " + action + ": " + std::generic_category().message(code)};
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() { if (fd >= 0) ::close(fd); }
};

Result<size_t> regular_size(const Descriptor& file, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return io_error(path, "read");
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kUsage, path.string() + ": not a regular file"};
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  ASSIGN_OR_RETURN(const size_t size, regular_size(file, path));
  MappedFile mapped;
  mapped.path_ = path;
  if (size == 0) return mapped;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return io_error(path, "map");
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  CHECK(part.data() >= data_);
  CHECK(part.data() + part.size() <= data_ + size_);
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::filesystem::path& path, size_t limit_bytes) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  ASSIGN_OR_RETURN(const size_t size, regular_size(file, path));
  if (size > limit_bytes)
    return Error{ErrorCode::kInvalidFile, path.string() + ": " + std::to_string(size) +
                                              " bytes is larger than the limit of " + std::to_string(limit_bytes)};
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(file.fd, content.data() + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::string temporary = path.string() + ".XXXXXX";
  Descriptor file{::mkstemp(temporary.data())};
  if (file.fd < 0) return io_error(temporary, "create");
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(file.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Error error = io_error(temporary, "write");
      ::unlink(temporary.c_str());
      return error;
    }
    done += static_cast<size_t>(n);
  }
  if (::fchmod(file.fd, 0644) != 0 || ::fsync(file.fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error = io_error(path, "write");
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace foretoken
