// make_cuda_backend(): opens the shared library that holds the CUDA backend, so that one program runs with and without a GPU.
#include <dlfcn.h>

#include <filesystem>

#include "cuda/entry.h"

namespace foretoken {
namespace {

constexpr const char* kLibrary = "libforetoken_cuda.so";

std::filesystem::path find_library() {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const std::filesystem::path& candidate : {folder, folder.parent_path() / "lib" / "foretoken", folder.parent_path().parent_path()})
    if (std::filesystem::exists(candidate / kLibrary, ignored)) return candidate / kLibrary;
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options) {
  const auto unavailable = [](const std::string& why) {
    return Error{ErrorCode::kDevice, "--backend cuda: " + why + "; use --backend cpu"};
  };
  const std::filesystem::path path = find_library();
  if (path.empty()) return unavailable(std::string(kLibrary) + " is not beside the program (it was built without CUDA)");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: matrices and memory keep its code in use
  if (!library) return unavailable(path.string() + " cannot be loaded: " + ::dlerror());
  const auto interface = reinterpret_cast<decltype(&foretoken_cuda_interface)>(::dlsym(library, "foretoken_cuda_interface"));
  const auto create = reinterpret_cast<decltype(&foretoken_cuda_create)>(::dlsym(library, "foretoken_cuda_create"));
  if (!interface || !create || interface() != kBackendInterface) return unavailable(path.string() + " belongs to another version of the program");
  char error[512];
  Backend* backend = create(options, error, sizeof error);
  if (!backend) return unavailable(error);
  return std::unique_ptr<Backend>(backend);
}

}  // namespace foretoken
