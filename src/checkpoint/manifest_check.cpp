#include <tessera/core/error.h>
#include <tessera/shard/slice_cover.h>

#include <set>
#include <utility>

#include "checkpoint/json_text.h"
#include "checkpoint/manifest_reader.h"
#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {
namespace {

[[noreturn]] void refuse(const std::string& origin, const std::string& fault) {
  throw StorageError(origin + ": " + fault);
}

void check_files(const Manifest& manifest, const std::string& origin) {
  std::set<std::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    if (!is_plain_name(file.name) || file.name == kManifestName) {
      refuse(origin, "expected the name of another file in the same folder, found " + shown(file.name));
    }
    if (!names.insert(file.name).second) refuse(origin, "file " + shown(file.name) + " stands there twice");
    if (file.header_bytes > file.num_bytes) {
      refuse(origin, "file " + shown(file.name) + " has " + std::to_string(file.num_bytes) +
                         " bytes, and a header of " + std::to_string(file.header_bytes));
    }
  }
}

class TensorCheck {
 public:
  TensorCheck(const Manifest& manifest, const ManifestTensor& tensor, const std::string& origin)
      : manifest_(manifest), tensor_(tensor), origin_(origin) {}

  void run() const {
    if (tensor_.file >= manifest_.files.size()) {
      fail("it lies in file " + std::to_string(tensor_.file) + ", and there are " +
           std::to_string(manifest_.files.size()));
    }
    const ManifestFile& file = manifest_.files[tensor_.file];
    if (file.header_bytes == 0) fail("it lies in " + shown(file.name) + ", which is no safetensors file");
    if (!bytes_of(tensor_.dtype, tensor_.shape)) {
      fail("the shape " + shape_text(tensor_.shape) + " has more elements than can be counted");
    }
    std::vector<const Slice*> slices;
    for (std::size_t i = 0; i < tensor_.slices.size(); ++i) {
      check_slice(tensor_.slices[i], "slice " + std::to_string(i));
      slices.push_back(&tensor_.slices[i].slice);
    }
    const auto fault = cover_fault(num_elements_of(tensor_.shape), slices);
    if (fault) fail(fault->text());
  }

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    refuse(origin_, "tensor " + shown(tensor_.name) + " of " + shown(tensor_.group) + ": " + fault);
  }

  void check_slice(const ManifestSlice& slice, const std::string& what) const {
    if (slice.rank >= manifest_.num_ranks) {
      fail(what + ": expected a rank below " + std::to_string(manifest_.num_ranks) + ", found " +
           std::to_string(slice.rank));
    }
    const auto num_bytes =
        static_cast<std::uint64_t>(slice.slice.num_elements()) * static_cast<std::uint64_t>(dtype_bytes(tensor_.dtype));
    const std::uint64_t expected = num_blocks(num_bytes, manifest_.block_bytes);
    if (slice.checksums.size() != expected) {
      fail(what + ": expected " + std::to_string(expected) + " checksums for its " + std::to_string(num_bytes) +
           " bytes, found " + std::to_string(slice.checksums.size()));
    }
  }

  const Manifest& manifest_;
  const ManifestTensor& tensor_;
  const std::string& origin_;
};

}  // namespace

void check_manifest(const Manifest& manifest, const std::string& origin) {
  check_files(manifest, origin);
  std::set<std::pair<std::size_t, std::string_view>> in_files;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    if (i > 0 && manifest.tensors[i - 1].group == tensor.group && manifest.tensors[i - 1].name == tensor.name) {
      refuse(origin, "tensor " + shown(tensor.name) + " stands twice in " + shown(tensor.group));
    }
    TensorCheck(manifest, tensor, origin).run();
    if (!in_files.emplace(tensor.file, tensor.name).second) {
      refuse(origin, "two tensors " + shown(tensor.name) + " lie in " + shown(manifest.files[tensor.file].name));
    }
  }
}

}  // namespace tessera::checkpoints
