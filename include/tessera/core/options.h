#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

/// A member of an options type with its builder call and its reader, as LibTorch's TORCH_ARG makes them, for modules
/// that do without Torch:
///
///   /// How long a call may take.
///   TESSERA_ARG(std::chrono::milliseconds, timeout) = std::chrono::seconds(30);
#define TESSERA_ARG(T, name)                      \
 public:                                          \
  auto name(T value) -> decltype(*this) {         \
    this->name##_ = std::move(value);             \
    return *this;                                 \
  }                                               \
  const T& name() const { return this->name##_; } \
                                                  \
 private:                                         \
  T name##_

namespace tessera {

/// The value of a field, whatever its options type. An `int` is held as std::int64_t, an enum as its name.
using FieldValue = std::variant<bool, std::int64_t, double, std::string, std::chrono::milliseconds,
                                std::vector<std::string>, std::vector<std::int64_t>>;

/// In the order of FieldValue's alternatives.
enum class FieldType { kBool, kInteger, kNumber, kString, kDuration, kStringList, kIntegerList };

/// One field of an options type.
struct Field {
  std::string key;   ///< "backend"; below a section "world.backend"
  std::string help;  ///< one line
  FieldValue default_value;
  std::vector<std::string> choices;  ///< empty when any value of the type will do
  /// The accessors take the options object itself. They only check that the member's type can hold the value.
  std::function<FieldValue(const void* options)> get;
  std::function<void(void* options, const FieldValue& value)> set;

  FieldType type() const { return static_cast<FieldType>(default_value.index()); }
  std::string type_name() const;     ///< "integer", "duration", "list of strings", ...
  std::string default_text() const;  ///< as get_text() gives it
};

/// The fields of an options type, without that type: for flags, tables and printing.
class FieldTable {
 public:
  explicit FieldTable(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const std::vector<Field>& fields() const { return fields_; }
  /// Null when there is none.
  const Field* find(std::string_view key) const;
  /// Throws ConfigError with the nearest valid key when there is none.
  const Field& at(std::string_view key) const;

 protected:
  /// Throws InternalError for a key that is taken or is not a bare TOML key, and for a default that is not among the
  /// choices.
  void append(Field field);
  std::string text_of(const void* options, std::string_view key) const;
  void assign_text(void* options, std::string_view key, std::string_view text) const;
  void check_choices(const void* options) const;

 private:
  std::string name_;
  std::vector<Field> fields_;
};

namespace detail {

template <class M>
concept FieldMember =
    std::same_as<M, bool> || std::same_as<M, int> || std::same_as<M, std::int64_t> || std::same_as<M, double> ||
    std::same_as<M, std::string> || std::same_as<M, std::chrono::milliseconds> ||
    std::same_as<M, std::vector<std::string>> || std::same_as<M, std::vector<std::int64_t>>;

template <class M>
concept EnumMember = std::is_enum_v<M>;

using EnumNames = std::vector<std::pair<std::string, std::int64_t>>;
const std::string& enum_name(const EnumNames& names, std::int64_t value);  // InternalError if it has none
std::int64_t enum_value(const EnumNames& names, const std::string& name);  // ConfigError if there is none
int narrow_to_int(std::int64_t value);                                     // ConfigError if it does not fit

template <FieldMember M>
FieldValue to_field_value(const M& member) {
  if constexpr (std::same_as<M, int>) {
    return FieldValue(std::in_place_type<std::int64_t>, member);
  } else {
    return FieldValue(std::in_place_type<M>, member);
  }
}

template <FieldMember M>
M from_field_value(const FieldValue& value) {
  if constexpr (std::same_as<M, int>) {
    return narrow_to_int(std::get<std::int64_t>(value));
  } else {
    return std::get<M>(value);
  }
}

}  // namespace detail

/// The fields of the options type `T`, listed once inside it, where its private members are accessible:
///
///   const FieldList<WorldOptions>& WorldOptions::fields() {
///     static const auto kList = FieldList<WorldOptions>("world")
///                                   .add("timeout", &WorldOptions::timeout_, "how long a call may take")
///                                   .add_choice("strategy", &WorldOptions::strategy_, {"ring", "tree"}, "...");
///     return kList;
///   }
///
/// Config files, flags, --print-config and the reference tables derive from it. Defaults are those of a
/// default-constructed `T`. Members with no text form (functions, tensors) are left out.
/// Requires: keys of lower case letters, digits, '_' and '-'.
/// Thread-safety: a finished list may be read from any thread.
template <class T>
class FieldList : public FieldTable {
 public:
  using FieldTable::FieldTable;

  template <detail::FieldMember M>
  FieldList& add(std::string key, M T::* member, std::string help) {
    return add_member(std::move(key), member, {}, std::move(help));
  }

  /// A string that must be one of `choices`.
  FieldList& add_choice(std::string key, std::string T::* member, std::vector<std::string> choices, std::string help) {
    return add_member(std::move(key), member, std::move(choices), std::move(help));
  }

  /// An enum, written by name. `names` lists every enumerator that the member may hold.
  template <detail::EnumMember E>
  FieldList& add_enum(std::string key, E T::* member,
                      const std::vector<std::pair<std::string, std::type_identity_t<E>>>& names, std::string help) {
    detail::EnumNames numbers;
    std::vector<std::string> choices;
    for (const auto& [name, value] : names) {
      numbers.emplace_back(name, static_cast<std::int64_t>(value));
      choices.push_back(name);
    }
    auto get = [member, numbers](const void* options) {
      return FieldValue(detail::enum_name(numbers, static_cast<std::int64_t>(static_cast<const T*>(options)->*member)));
    };
    auto set = [member, numbers](void* options, const FieldValue& value) {
      static_cast<T*>(options)->*member = static_cast<E>(detail::enum_value(numbers, std::get<std::string>(value)));
    };
    return add_field(std::move(key), std::move(choices), std::move(help), std::move(get), std::move(set));
  }

  /// All fields of another options type, as the TOML table `[key]` and with keys `key.field`.
  template <class S>
  FieldList& section(const std::string& key, S T::* member, const FieldList<S>& inner) {
    for (const Field& field : inner.fields()) {
      auto get = [member, get_inner = field.get](const void* options) {
        return get_inner(&(static_cast<const T*>(options)->*member));
      };
      auto set = [member, set_inner = field.set](void* options, const FieldValue& value) {
        set_inner(&(static_cast<T*>(options)->*member), value);
      };
      add_field(key + "." + field.key, field.choices, field.help, std::move(get), std::move(set));
    }
    return *this;
  }

  /// The text that set_text() reads back to the same value: 30s, true, 0.5, a,b,c.
  std::string get_text(const T& options, std::string_view key) const { return text_of(&options, key); }
  /// Throws ConfigError, `options` unchanged, when there is no such key or `text` does not fit it.
  void set_text(T& options, std::string_view key, std::string_view text) const { assign_text(&options, key, text); }
  /// Throws ConfigError naming every field that a builder call gave a value outside its choices. For resolve().
  void check(const T& options) const { check_choices(&options); }

 private:
  template <detail::FieldMember M>
  FieldList& add_member(std::string key, M T::* member, std::vector<std::string> choices, std::string help) {
    auto get = [member](const void* options) {
      return detail::to_field_value(static_cast<const T*>(options)->*member);
    };
    auto set = [member](void* options, const FieldValue& value) {
      static_cast<T*>(options)->*member = detail::from_field_value<M>(value);
    };
    return add_field(std::move(key), std::move(choices), std::move(help), std::move(get), std::move(set));
  }

  FieldList& add_field(std::string key, std::vector<std::string> choices, std::string help,
                       std::function<FieldValue(const void*)> get, std::function<void(void*, const FieldValue&)> set) {
    const T defaults{};
    FieldValue value = get(&defaults);
    append(
        Field{std::move(key), std::move(help), std::move(value), std::move(choices), std::move(get), std::move(set)});
    return *this;
  }
};

}  // namespace tessera
