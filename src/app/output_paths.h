// Checks of the places that options name to write to, made while the command line is read: before a model is. For
// CLI::Option::check: empty, or what stands in the way.
#pragma once

#include <string>

namespace foretoken::app {

// A file that can be made, or replaced.
std::string check_output_file(const std::string& path);
// A folder that can be written to, or made with what is missing above it.
std::string check_output_folder(const std::string& path);
// The same for caches; one that an earlier run has filled may be read-only.
std::string check_cache_folder(const std::string& path);

}  // namespace foretoken::app
