#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>
#include <tessera/disk/checksum.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <ranges>
#include <system_error>
#include <utility>

#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/load/direct_reader.h"
#include "checkpoint/load/file_reader.h"
#include "checkpoint/load/slice_reader.h"

namespace tessera {

using checkpoints::FileReader;
using checkpoints::shown;

struct SavedStep::State {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<FileReader> files;      // as the manifest's
  std::vector<std::uint64_t> starts;  // of each tensor of the manifest, in its file
  mutable checkpoints::DirectReaders readers;

  void open_files();
  std::string header_fault(std::size_t file);
};

namespace {

// A manifest has a checksum for each MiB and some words for each slice, so one of this size is that of a step of many
// TB.
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

/// The last part of a path, also of "step-00000020/" and of ".".
std::string name_of(const std::filesystem::path& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const MappedFile file(folder / kManifestName);
  if (file.bytes().size() > kMaxManifestBytes) {
    throw StorageError(file.name() + ": expected a manifest of at most " + std::to_string(kMaxManifestBytes) +
                       " bytes, found " + std::to_string(file.bytes().size()));
  }
  Manifest manifest = Manifest::parse(file.text(), file.name());
  const auto named = step_of_folder(name_of(folder));
  if (named && *named != manifest.step) {
    throw StorageError(file.name() + " is that of another step: expected step " + std::to_string(*named) + ", found " +
                       std::to_string(manifest.step));
  }
  return manifest;
}

void throw_faults(const std::filesystem::path& folder, const std::vector<std::string>& faults) {
  if (faults.empty()) return;
  if (faults.size() == 1) throw StorageError(faults[0]);
  std::string text = folder.string() + " has " + std::to_string(faults.size()) + " faults:";
  for (const std::string& fault : faults) text += "\n  " + fault;
  throw StorageError(text);
}

std::uint64_t checksum_of_file(const FileReader& file) {
  constexpr std::uint64_t kBytesAtOnce = std::uint64_t{1} << 20;
  std::vector<std::byte> piece(std::min(kBytesAtOnce, file.num_bytes()));
  RunningChecksum checksum;
  for (std::uint64_t offset = 0; offset < file.num_bytes(); offset += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), file.num_bytes() - offset));
    file.read(offset, part);
    checksum.add(part);
  }
  return checksum.value();
}

/// Borrows one of the readers that bypass the page cache, if the system gives one.
class BorrowedReader {
 public:
  /// Borrows none when `readers` is null.
  explicit BorrowedReader(checkpoints::DirectReaders* readers) : readers_(readers) {
    int error = 0;
    if (readers_ != nullptr) reader_ = readers_->take(error);
  }
  ~BorrowedReader() {
    if (reader_) readers_->give_back(std::move(reader_));
  }
  BorrowedReader(const BorrowedReader&) = delete;
  BorrowedReader& operator=(const BorrowedReader&) = delete;

  checkpoints::DirectReader* get() const { return reader_.get(); }

 private:
  checkpoints::DirectReaders* const readers_;
  std::unique_ptr<checkpoints::DirectReader> reader_;
};

std::string another_tensor(const ManifestTensor& tensor, const StoredTensor* stored) {
  const std::string expected = "tensor " + shown(tensor.name) + ": the manifest says " +
                               std::string(dtype_name(tensor.dtype)) + " " + checkpoints::shape_text(tensor.shape) +
                               ", the header ";
  if (stored == nullptr) return expected + "does not list it";
  if (stored->dtype == tensor.dtype && stored->shape == tensor.shape) return "";
  return expected + std::string(dtype_name(stored->dtype)) + " " + checkpoints::shape_text(stored->shape);
}

}  // namespace

/// Empty when the header is as the manifest says. Fills the starts of the file's tensors.
std::string SavedStep::State::header_fault(std::size_t file) {
  const ManifestFile& expected = manifest.files[file];
  std::vector<std::byte> header(expected.header_bytes);
  files[file].read(0, header);
  if (checksum_of(header) != expected.checksum) {
    return "bytes 0 to " + std::to_string(header.size()) +
           ", the header, are damaged: they have another checksum than when they were saved";
  }
  const auto layout = SafetensorsLayout::parse(header, expected.num_bytes, files[file].path().string());
  if (layout.data_start() != expected.header_bytes) {
    return "the header has " + std::to_string(layout.data_start()) + " bytes, the manifest says " +
           std::to_string(expected.header_bytes);
  }
  std::size_t num_tensors = 0;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    if (tensor.file != file) continue;
    const StoredTensor* stored = layout.find(tensor.name);
    std::string fault = another_tensor(tensor, stored);
    if (!fault.empty()) return fault;
    starts[i] = layout.data_start() + stored->begin;
    ++num_tensors;
  }
  if (num_tensors == layout.tensors().size()) return "";
  return "the header lists " + std::to_string(layout.tensors().size()) + " tensors, the manifest " +
         std::to_string(num_tensors);
}

void SavedStep::State::open_files() {
  std::vector<std::string> faults;
  for (const ManifestFile& expected : manifest.files) {
    const std::filesystem::path path = folder / expected.name;
    try {
      FileReader& file = files.emplace_back(path);
      if (file.num_bytes() == expected.num_bytes) continue;
      faults.push_back(path.string() + ": expected " + std::to_string(expected.num_bytes) + " bytes, found " +
                       std::to_string(file.num_bytes()) +
                       (file.num_bytes() < expected.num_bytes ? ": it was cut short" : ": something was added"));
    } catch (const StorageError& error) {
      faults.emplace_back(error.what());
    }
  }
  throw_faults(folder, faults);
  starts.resize(manifest.tensors.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (manifest.files[i].header_bytes == 0) continue;
    try {
      const std::string fault = header_fault(i);
      if (!fault.empty()) faults.push_back(files[i].path().string() + ": " + fault);
    } catch (const StorageError& error) {
      faults.emplace_back(error.what());
    }
  }
  throw_faults(folder, faults);
}

SavedStep::SavedStep(const std::filesystem::path& folder) {
  auto state = std::make_shared<State>();
  state->folder = folder;
  state->manifest = read_manifest(folder);
  state->open_files();
  state_ = std::move(state);
}

const std::filesystem::path& SavedStep::folder() const { return state_->folder; }
const Manifest& SavedStep::manifest() const { return state_->manifest; }

void SavedStep::read(std::string_view group, std::string_view name, const Slice& slice,
                     std::span<std::byte> into) const {
  const Manifest& manifest = state_->manifest;
  const ManifestTensor* tensor = manifest.find(group, name);
  if (tensor == nullptr) {
    throw ConfigError(state_->folder.string() + " has no tensor " + shown(name) + " of " + shown(group));
  }
  const std::string what = state_->folder.string() + ": tensor " + shown(name) + " of " + shown(group);
  if (slice.num_tensor_elements() != num_elements_of(tensor->shape)) {
    throw ConfigError(what + " has the shape " + checkpoints::shape_text(tensor->shape) +
                      "; it cannot be seen with the shape " + checkpoints::shape_text(slice.shape()));
  }
  const SliceRuns wanted(slice);
  const auto num_bytes = static_cast<std::uint64_t>(slice.num_elements() * dtype_bytes(tensor->dtype));
  if (into.size() != num_bytes) {
    throw ConfigError(what + ": expected room for " + std::to_string(num_bytes) + " bytes, found " +
                      std::to_string(into.size()));
  }
  // See Note [Past the page cache].
  const bool is_part = num_bytes < checkpoints::bytes_of(tensor->dtype, tensor->shape);
  const BorrowedReader direct(is_alone_ || is_part ? &state_->readers : nullptr);
  checkpoints::ReadBuffers buffers(manifest.block_bytes, count_.get(), direct.get());
  const std::uint64_t start = state_->starts[static_cast<std::size_t>(tensor - manifest.tensors.data())];
  for (const ManifestSlice& stored : tensor->slices) {
    checkpoints::SliceReader(state_->files[tensor->file], start, *tensor, stored, buffers).read(wanted, into);
  }
}

std::uint64_t SavedStep::num_bytes() const {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : state_->manifest.files) sum += file.num_bytes - file.header_bytes;
  return sum;
}

std::vector<std::string> SavedStep::verify(const std::function<void(std::uint64_t)>& progress) const {
  const Manifest& manifest = state_->manifest;
  std::vector<std::string> faults;
  std::uint64_t done = 0;
  const auto advance = [&](std::uint64_t num_bytes) {
    done += num_bytes;
    if (progress) progress(done);
  };
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (manifest.files[i].header_bytes > 0) continue;
    try {
      if (checksum_of_file(state_->files[i]) != manifest.files[i].checksum) {
        faults.push_back(state_->files[i].path().string() +
                         " is damaged: it has another checksum than when it was saved");
      }
    } catch (const StorageError& error) {
      faults.emplace_back(error.what());
    }
    advance(manifest.files[i].num_bytes);
  }
  checkpoints::ReadBuffers buffers(manifest.block_bytes);
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    for (const ManifestSlice& slice : tensor.slices) {
      checkpoints::SliceReader(state_->files[tensor.file], state_->starts[i], tensor, slice, buffers)
          .verify(faults, advance);
    }
  }
  return faults;
}

namespace {

/// Empty when there is nothing wrong.
std::string fault_of(const std::filesystem::path& folder, bool thorough) {
  try {
    const SavedStep step(folder);
    if (!thorough) return "";
    const std::vector<std::string> faults = step.verify();
    if (faults.empty()) return "";
    return faults[0] + (faults.size() == 1 ? "" : " (and " + std::to_string(faults.size() - 1) + " more faults)");
  } catch (const StorageError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
}

}  // namespace

std::optional<std::int64_t> newest_intact(const std::filesystem::path& root, bool thorough,
                                          std::vector<std::string>& skipped) {
  const std::vector<std::int64_t> steps = list_steps(root);
  for (const std::int64_t step : std::views::reverse(steps)) {
    const std::string fault = fault_of(root / step_folder_name(step), thorough);
    if (fault.empty()) return step;
    skipped.push_back("step " + std::to_string(step) + " is not whole: " + fault);
  }
  return std::nullopt;
}

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kDigits = 8;

}  // namespace

std::string step_folder_name(std::int64_t step) {
  if (step < 0) throw InternalError("no step has the number " + std::to_string(step));
  const std::string digits = std::to_string(step);
  return std::string(kStepPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  std::int64_t step = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (fault != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (name != step_folder_name(step)) return std::nullopt;
  return step;
}

std::vector<std::int64_t> list_steps(const std::filesystem::path& root) {
  std::vector<std::int64_t> steps;
  std::error_code fault;
  std::filesystem::directory_iterator entries(root, fault);
  if (fault == std::errc::no_such_file_or_directory) return steps;
  for (const std::filesystem::directory_iterator end; !fault && entries != end; entries.increment(fault)) {
    const auto step = step_of_folder(entries->path().filename().string());
    std::error_code gone;  // a step may be removed meanwhile
    if (step && entries->is_directory(gone)) steps.push_back(*step);
  }
  if (fault) throw StorageError("the folder " + root.string() + " cannot be listed: " + fault.message());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::int64_t> steps_to_remove(const std::vector<std::int64_t>& steps, std::int64_t keep_last,
                                          std::int64_t keep_every) {
  if (keep_last < 0 || keep_every < 0) {
    throw ConfigError("expected numbers of at least 0 for which checkpoints to keep, found keep_last " +
                      std::to_string(keep_last) + " and keep_every " + std::to_string(keep_every));
  }
  std::vector<std::int64_t> removed;
  if (keep_last == 0) return removed;
  const auto num_steps = static_cast<std::int64_t>(steps.size());
  for (std::int64_t i = 0; i < num_steps - keep_last; ++i) {
    const std::int64_t step = steps[static_cast<std::size_t>(i)];
    if (keep_every == 0 || step % keep_every != 0) removed.push_back(step);
  }
  return removed;
}

}  // namespace tessera
