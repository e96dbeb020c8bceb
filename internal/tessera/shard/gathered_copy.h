#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/flat_source.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string>

namespace tessera {

/// A flat parameter that every rank assembles from the others' parts, in memory of its own.
class GatheredCopy : public FlatSource {
 public:
  /// The memory of a gather that nobody waits for is kept by the group until it has arrived.
  GatheredCopy(Communicator comm, FlatSpec spec, BufferPool buffers);

  at::Tensor make_shard() override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& flat) override;
  void release(HollowStorage& flat, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& /*flat*/) override {}
  void before_write() override {}

 private:
  HollowStorage make_arriving() const;

  Communicator comm_;
  FlatSpec spec_;
  BufferPool buffers_;
  Work gather_;
  HollowStorage arriving_;  // the flat parameter, until all parts are there
  c10::DataPtr kept_;       // bytes for the next time, which nobody may read: they are out of date
};

/// As host_pages(); if memory is counted, the error also says what it is used for.
std::shared_ptr<void> own_pages(std::size_t num_bytes);

/// A pool of memory for flat parameters: of the group's allocator, whose memory travels with the fewest copies, if it
/// has one; else of the large blocks that tensors use as well. `buffer_bytes`: as BufferPool takes it.
BufferPool make_flat_buffers(const Communicator& comm, std::size_t buffer_bytes, c10::Device device);

}  // namespace tessera
