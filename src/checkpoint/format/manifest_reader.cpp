#include "checkpoint/format/manifest_reader.h"

#include <tessera/core/error.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/plan/save_plan.h"

namespace tessera::checkpoints {
namespace {

using Json = nlohmann::json;

Json to_json(const SliceDescription& slice) {
  const SliceMembers members = members_of(slice.slice);
  return {slice.group,         slice.name,     std::string(dtype_name(slice.dtype)),
          slice.slice.shape(), members.view,   members.starts,
          members.sizes,       members.ranges, members.part};
}

SliceDescription from_json(const Json& json) {
  const auto dtype = dtype_of_name(json.at(2).get<std::string>());
  if (!dtype) throw InternalError("a rank describes a slice of type " + json.at(2).get<std::string>());
  const SliceMembers members{json.at(4), json.at(5), json.at(6), json.at(7), json.at(8)};
  return {json.at(0), json.at(1), *dtype, slice_of(members, json.at(3))};
}

}  // namespace

std::string to_text(const std::vector<SliceDescription>& slices) {
  Json list = Json::array();
  for (const SliceDescription& slice : slices) list.push_back(to_json(slice));
  try {
    return list.dump();
  } catch (const Json::exception& error) {
    throw ConfigError(std::string("the name of a tensor is not UTF-8: ") + error.what());
  }
}

std::vector<SliceDescription> slices_from_text(std::string_view text) {
  std::vector<SliceDescription> slices;
  try {
    for (const Json& json : Json::parse(text)) slices.push_back(from_json(json));
  } catch (const Json::exception& error) {
    throw InternalError(std::string("a rank's slices cannot be read: ") + error.what());
  }
  return slices;
}

namespace {

/// The ranges of all dimensions, one dimension after another.
std::vector<std::vector<Range>> ranges_of(const SliceMembers& members) {
  bool fits = members.ranges.size() == members.view.size() && members.starts.size() == members.sizes.size() &&
              members.sizes.size() <= SliceMembers::kMostRanges;
  std::size_t count = 0;
  for (const std::int64_t number : members.ranges) {
    fits = fits && number >= 0 && static_cast<std::size_t>(number) <= members.sizes.size() - count;
    if (fits) count += static_cast<std::size_t>(number);
  }
  if (!fits || count != members.sizes.size()) {
    throw ConfigError("the ranges " + shape_text(members.ranges) + " do not tell of which of " +
                      std::to_string(members.view.size()) + " dimensions " + std::to_string(members.starts.size()) +
                      " starts and " + std::to_string(members.sizes.size()) + " sizes are");
  }
  std::vector<std::vector<Range>> ranges;
  count = 0;
  for (const std::int64_t number : members.ranges) {
    auto& of_dim = ranges.emplace_back();
    for (const std::size_t end = count + static_cast<std::size_t>(number); count < end; ++count) {
      of_dim.push_back({members.starts[count], members.sizes[count]});
    }
  }
  return ranges;
}

Slice selected(const SliceMembers& members) {
  if (members.ranges.empty()) return Slice::box(members.view, members.starts, members.sizes);
  const auto ranges = ranges_of(members);
  Slice slice = Slice::whole(members.view);
  for (std::size_t d = 0; d < ranges.size(); ++d) slice = slice.select(d, ranges[d]);
  return slice;
}

}  // namespace

SliceMembers members_of(const Slice& slice) {
  if (const auto extent = slice.as_extent()) {
    return {{slice.num_tensor_elements()}, {extent->start}, {extent->size}, {}, {}};
  }
  SliceMembers members;
  members.view = slice.shape();
  for (const auto& of_dim : slice.indices()) {
    members.ranges.push_back(static_cast<std::int64_t>(of_dim.size()));
    for (const Range& range : of_dim) {
      members.starts.push_back(range.start);
      members.sizes.push_back(range.size);
    }
  }
  if (members.sizes.size() > SliceMembers::kMostRanges) {
    throw ConfigError("a slice consists of " + std::to_string(members.sizes.size()) + " ranges of indices; at most " +
                      std::to_string(SliceMembers::kMostRanges) + " can be saved");
  }
  if (members.ranges == std::vector<std::int64_t>(members.view.size(), 1)) members.ranges.clear();
  if (!slice.takes_all_selected()) members.part = {slice.range().start, slice.range().size};
  return members;
}

Slice slice_of(const SliceMembers& members, const std::vector<std::int64_t>& shape) {
  if (num_elements_of(members.view) != num_elements_of(shape)) {
    throw ConfigError("the view " + shape_text(members.view) + " has another number of elements than the shape " +
                      shape_text(shape));
  }
  Slice slice = selected(members);
  if (!members.part.empty()) {
    if (members.part.size() != 2) {
      throw ConfigError("expected an element and a number of them as part, found " + shape_text(members.part));
    }
    slice = slice.part({members.part[0], members.part[1]});
  }
  const auto extent = slice.as_extent();  // of the tensor, whatever the view
  return extent ? Slice::extent(shape, *extent) : slice;
}

namespace {

using namespace members;

int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/// See Note [A header is read as it comes].
class ManifestReader : public StrictReader {
 public:
  explicit ManifestReader(const std::string& origin) : StrictReader(origin, "the manifest") {}

  Manifest take() { return std::move(manifest_); }

  bool boolean(bool value) override { return expects_value() ? store_value(value) : StrictReader::boolean(value); }
  bool number_integer(number_integer_t value) override {
    return expects_value() ? store_value(value) : StrictReader::number_integer(value);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return expects_value() ? store_value(value) : StrictReader::number_float(value, text);
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t /*num_elements*/) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t /*num_elements*/) override;
  bool end_array() override;

 private:
  std::string where() const override;
  std::string expected() const override;
  bool expects_value() const { return place_ == Place::kValues && value_name_.has_value(); }
  bool expects(Kind kind) const { return member_ != nullptr && member_->kind == kind; }
  ManifestTensor& tensor() { return manifest_.tensors.back(); }
  bool store_value(ManifestValue value);
  bool store_number(std::uint64_t value);
  bool store_text(std::string& value);
  bool store_list_element(std::uint64_t value);
  std::vector<std::int64_t>& list_of(Id id);
  std::vector<std::uint64_t> checksums_in(const std::string& text) const;
  std::uint64_t checksum_in(const std::string& text) const;
  void begin_object(Place place);
  void finish_object() const;
  void make_slices();

  Place place_ = Place::kStart;
  std::uint64_t version_ = 1;
  std::vector<SliceMembers> slices_;  // of the tensor that is being read
  bool has_boxes_only_ = true;
  const Member* member_ = nullptr;  // whose value comes next, or whose list is being read
  std::optional<std::string> value_name_;
  std::uint32_t seen_ = 0;  // members of the objects that are open
  Manifest manifest_;
};

std::string ManifestReader::where() const {
  switch (place_) {
    case Place::kFile:
      return "file " + std::to_string(manifest_.files.size() - 1);
    case Place::kValues:
      return "values";
    case Place::kStart:
    case Place::kManifest:
    case Place::kFiles:
    case Place::kTensors:
    case Place::kEnd:
      return "the manifest";
    default:
      break;
  }
  const ManifestTensor& last = manifest_.tensors.back();
  std::string text = "tensor " + std::to_string(manifest_.tensors.size() - 1);
  if (!last.name.empty()) text += " " + shown(last.name);
  const bool in_slice = place_ == Place::kSlice || (place_ == Place::kNumbers && member_->object == Place::kSlice);
  return in_slice ? text + ", slice " + std::to_string(last.slices.size() - 1) : text;
}

std::string ManifestReader::expected() const {
  if (place_ == Place::kStart) return "an object";
  if (place_ == Place::kFiles || place_ == Place::kTensors || place_ == Place::kSlices) return "an object in the list";
  if (place_ == Place::kValues) {
    return value_name_ ? "a number, text or boolean as " + shown(*value_name_) : "nothing more";
  }
  if (member_ == nullptr) return "nothing more";
  return std::string(kind_name(member_->kind)) + " as " + std::string(member_->name);
}

void ManifestReader::begin_object(Place place) {
  for (const Member& member : kMembers) {
    if (member.object == place) seen_ &= ~bit_of(member.id);
  }
  place_ = place;
  member_ = nullptr;
}

bool ManifestReader::start_object(std::size_t /*num_elements*/) {
  if (place_ == Place::kStart) {
    begin_object(Place::kManifest);
  } else if (place_ == Place::kFiles) {
    manifest_.files.emplace_back();
    begin_object(Place::kFile);
  } else if (place_ == Place::kTensors) {
    manifest_.tensors.emplace_back();
    begin_object(Place::kTensor);
  } else if (place_ == Place::kSlices) {
    tensor().slices.emplace_back();
    slices_.emplace_back();
    begin_object(Place::kSlice);
  } else if (place_ == Place::kManifest && expects(Kind::kValues)) {
    begin_object(Place::kValues);
  } else {
    return unexpected("an object");
  }
  return true;
}

bool ManifestReader::key(string_t& name) {
  if (place_ == Place::kValues) {
    if (manifest_.values.contains(name)) refuse("the value " + shown(name) + " stands twice");
    value_name_ = std::move(name);
    return true;
  }
  for (const Member& member : kMembers) {
    if (member.object != place_ || member.name != name) continue;
    if ((seen_ & bit_of(member.id)) != 0) refuse(where() + ": " + name + " stands there twice");
    seen_ |= bit_of(member.id);
    member_ = &member;
    return true;
  }
  refuse(where() + ": the member " + shown(name) + " is unknown");
}

void ManifestReader::finish_object() const {
  std::uint32_t optional = 0;
  if (place_ == Place::kFile) {
    const bool has_header = (seen_ & (bit_of(Id::kHeaderBytes) | bit_of(Id::kHeaderChecksum))) != 0;
    if (has_header && (seen_ & bit_of(Id::kFileChecksum)) != 0) {
      refuse(where() + ": expected header_bytes and header_checksum, or checksum, found both");
    }
    optional = has_header ? bit_of(Id::kFileChecksum) : bit_of(Id::kHeaderBytes) | bit_of(Id::kHeaderChecksum);
  }
  if (place_ == Place::kSlice) optional = bit_of(Id::kRanges) | bit_of(Id::kPart);
  for (const Member& member : kMembers) {
    if (member.object != place_ || ((seen_ | optional) & bit_of(member.id)) != 0) continue;
    refuse(where() + ": " + std::string(member.name) + " is missing");
  }
}

/// Called when the tensor's shape is known.
void ManifestReader::make_slices() {
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    try {
      tensor().slices[i].slice = slice_of(slices_[i], tensor().shape);
    } catch (const ConfigError& error) {
      refuse("tensor " + shown(tensor().name) + " of " + shown(tensor().group) + ": slice " + std::to_string(i) + ": " +
             error.what());
    }
    has_boxes_only_ = has_boxes_only_ && slices_[i].is_box();
  }
  slices_.clear();
}

bool ManifestReader::end_object() {
  finish_object();
  member_ = nullptr;
  switch (place_) {
    case Place::kFile:
      place_ = Place::kFiles;
      break;
    case Place::kTensor:
      make_slices();
      place_ = Place::kTensors;
      break;
    case Place::kSlice:
      place_ = Place::kSlices;
      break;
    case Place::kValues:
      place_ = Place::kManifest;
      break;
    default:
      if (version_ == 1 && !has_boxes_only_)
        refuse("slices with ranges or a part are of version 2 of the format, not 1");
      place_ = Place::kEnd;
  }
  return true;
}

bool ManifestReader::start_array(std::size_t /*num_elements*/) {
  if (place_ == Place::kNumbers) return unexpected("a list in the list");
  if (expects(Kind::kObjects)) {
    place_ = member_->id == Id::kFiles ? Place::kFiles : member_->id == Id::kTensors ? Place::kTensors : Place::kSlices;
    member_ = nullptr;
  } else if (expects(Kind::kNumbers)) {
    place_ = Place::kNumbers;
  } else {
    return unexpected("a list");
  }
  return true;
}

bool ManifestReader::end_array() {
  place_ = place_ == Place::kNumbers ? member_->object : place_ == Place::kSlices ? Place::kTensor : Place::kManifest;
  member_ = nullptr;
  return true;
}

bool ManifestReader::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kNumbers) return store_list_element(value);
  if (place_ == Place::kValues && value_name_) {
    if (!std::in_range<std::int64_t>(value)) return unexpected(std::to_string(value) + ", which is too large");
    return store_value(static_cast<std::int64_t>(value));
  }
  return expects(Kind::kNumber) ? store_number(value) : unexpected(std::to_string(value));
}

bool ManifestReader::string(string_t& value) {
  if (place_ == Place::kValues && value_name_) return store_value(std::move(value));
  return expects(Kind::kText) ? store_text(value) : unexpected("the text " + shown(value));
}

bool ManifestReader::store_value(ManifestValue value) {
  manifest_.values.emplace(std::move(*value_name_), std::move(value));
  value_name_.reset();
  return true;
}

bool ManifestReader::store_number(std::uint64_t value) {
  if (value < member_->least || value > member_->most) {
    refuse(where() + ": expected " + std::to_string(member_->least) + " to " + std::to_string(member_->most) + " as " +
           std::string(member_->name) + ", found " + std::to_string(value));
  }
  switch (member_->id) {
    case Id::kVersion:
      if (value != 1 && value != 2) refuse("expected version 1 or 2 of the format, found " + std::to_string(value));
      version_ = value;
      break;
    case Id::kStep:
      manifest_.step = static_cast<std::int64_t>(value);
      break;
    case Id::kNumRanks:
      manifest_.num_ranks = static_cast<int>(value);
      break;
    case Id::kBlockBytes:
      if (!std::has_single_bit(value)) refuse("expected a power of two as block_bytes, found " + std::to_string(value));
      manifest_.block_bytes = value;
      break;
    case Id::kFileBytes:
      manifest_.files.back().num_bytes = value;
      break;
    case Id::kHeaderBytes:
      manifest_.files.back().header_bytes = value;
      break;
    case Id::kFile:
      tensor().file = value;
      break;
    default:
      tensor().slices.back().rank = static_cast<int>(value);
  }
  member_ = nullptr;
  return true;
}

bool ManifestReader::store_text(std::string& value) {
  switch (member_->id) {
    case Id::kFormat:
      if (value != "tessera-checkpoint") refuse("expected the format \"tessera-checkpoint\", found " + shown(value));
      break;
    case Id::kRoot:
      break;
    case Id::kFileName:
      manifest_.files.back().name = std::move(value);
      break;
    case Id::kHeaderChecksum:
    case Id::kFileChecksum:
      manifest_.files.back().checksum = checksum_in(value);
      break;
    case Id::kTensorName:
      tensor().name = std::move(value);
      break;
    case Id::kGroup:
      tensor().group = std::move(value);
      break;
    case Id::kDtype: {
      const auto dtype = dtype_of_name(value);
      if (!dtype) refuse(where() + ": the type " + shown(value) + " is unknown");
      tensor().dtype = *dtype;
      break;
    }
    default:
      tensor().slices.back().checksums = checksums_in(value);
  }
  member_ = nullptr;
  return true;
}

bool ManifestReader::store_list_element(std::uint64_t value) {
  std::vector<std::int64_t>& list = list_of(member_->id);
  if (!std::in_range<std::int64_t>(value)) return unexpected(std::to_string(value) + ", which is too large");
  const bool of_ranges = member_->id == Id::kStarts || member_->id == Id::kSizes;
  const std::size_t most = of_ranges ? SliceMembers::kMostRanges : kMaxDims;
  if (list.size() == most) return unexpected("more than " + std::to_string(most) + " of them");
  list.push_back(static_cast<std::int64_t>(value));
  return true;
}

std::vector<std::int64_t>& ManifestReader::list_of(Id id) {
  if (id == Id::kShape) return tensor().shape;
  SliceMembers& slice = slices_.back();
  switch (id) {
    case Id::kView:
      return slice.view;
    case Id::kStarts:
      return slice.starts;
    case Id::kSizes:
      return slice.sizes;
    case Id::kRanges:
      return slice.ranges;
    default:
      return slice.part;
  }
}

std::vector<std::uint64_t> ManifestReader::checksums_in(const std::string& text) const {
  constexpr std::size_t kDigits = 16;
  if (text.size() % kDigits != 0) {
    refuse(where() + ": expected 16 digits for each of the " + std::string(member_->name) + ", found " +
           std::to_string(text.size()) + " in all");
  }
  std::vector<std::uint64_t> numbers(text.size() / kDigits, 0);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = digit_of(text[i]);
    if (digit < 0) {
      refuse(where() + ": expected the digits 0 to 9 and a to f in " + std::string(member_->name) + ", found " +
             shown(text.substr(i, 1)));
    }
    numbers[i / kDigits] = numbers[i / kDigits] << 4 | static_cast<std::uint64_t>(digit);
  }
  return numbers;
}

std::uint64_t ManifestReader::checksum_in(const std::string& text) const {
  const auto numbers = checksums_in(text);
  if (numbers.size() == 1) return numbers[0];
  refuse(where() + ": expected 16 digits as " + std::string(member_->name) + ", found " + std::to_string(text.size()));
}

}  // namespace

Manifest read_manifest_text(std::string_view text, const std::string& origin) {
  ManifestReader reader(origin);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace tessera::checkpoints
