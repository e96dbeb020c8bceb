#pragma once

#include <tessera/shard/hollow_storage.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/piece_stream.h"
#include "offload/places.h"

namespace tessera::offload {

/// What belongs to a shard, a gradient or an optimizer's state: a tensor of the shard's length, in host memory or in a
/// file. It begins with zeros.
class KeptTensor {
 public:
  /// `what` is for messages: "the optimizer state of blocks.3"; `why_empty` for who reads it where it has no bytes.
  KeptTensor(std::shared_ptr<Places> places, Tier tier, Kind kind, std::int64_t num_elements, at::ScalarType dtype,
             const std::string& what, const std::string& why_empty);

  /// Stands for the elements from `first` on. Has bytes if the tensor is in memory.
  at::Tensor stand_in(std::int64_t first, at::IntArrayRef shape);
  /// Whether something stands for one of these elements, or has once stood for one.
  bool is_taken(std::int64_t first, std::int64_t end) const;
  bool was_taken(std::int64_t first, std::int64_t end) const;
  const at::Tensor& whole() const { return storage_.flat(); }
  bool holds(const at::Tensor& tensor) const { return storage_.holds(tensor); }
  bool is_in_file() const { return block_.has_value(); }
  StreamedTensor streamed() const;
  /// Replaces the elements from `first` on, or adds to them. Requires: as many as there are from there on, or fewer.
  void set_values(std::int64_t first, const at::Tensor& values, bool adds = false);

 private:
  std::shared_ptr<Places> places_;
  std::string what_;
  HollowStorage storage_;
  std::optional<FileBlock> block_;
  struct Taken {
    std::int64_t first;
    std::int64_t end;
    c10::weak_intrusive_ptr<c10::TensorImpl> by;
  };
  std::vector<Taken> taken_;
};

}  // namespace tessera::offload
