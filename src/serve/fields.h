// Fields: the members of a request's object, read by name and type. Every mistake names the field; what nobody read is either known to be
// harmless, or refused when it would change the answer.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace foretoken::serve {

class Fields {
 public:
  // `object` must outlive the reader. `prefix` stands before names in errors ("stream_options.").
  explicit Fields(const OrderedJson& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // The member, or null when it is absent or JSON null.
  const OrderedJson* find(std::string_view name);
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }

  // Typed reads; absent gives nothing. The first mistake is kept in error() and later reads give nothing.
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  std::optional<uint64_t> unsigned64(std::string_view name);
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<std::string> text(std::string_view name);
  std::optional<std::string> one_of(std::string_view name, std::initializer_list<std::string_view> values);
  const OrderedJson* object(std::string_view name);
  const OrderedJson* array(std::string_view name);

  // A field of the API that this server does not do. Present with a value other than a harmless one: an error.
  void refuse(std::string_view name, std::initializer_list<OrderedJson> harmless = {}, std::string_view why = {});
  void fail(ApiError error);

  bool ok() const { return !error_; }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void wrong(std::string_view name, std::string_view what);
  const OrderedJson& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

}  // namespace foretoken::serve
