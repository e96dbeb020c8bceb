#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// An accelerator without hardware, for programs of tests that link this: `c10::DeviceType::PrivateUse1`, by the name
/// "sim".
///
/// - Streams are asynchronous: a worker thread runs what was launched, in order. Kernels are those of the CPU.
/// - Device memory that the host touches ends the process. So does pinned memory while a copy of it is under way:
///   reading what is written, writing what is read. Addresses are not used twice, and fresh memory reads as NaN.
/// - Two accesses to the same bytes, one of them a write, that no event and no wait puts in order are an Error. So is
///   memory that is freed while another stream may use it. What a destructor finds is thrown by the next launch or
///   wait.
/// - What fails in a kernel is thrown by the next wait of the host, as on real devices.
/// - Random numbers are those of the CPU's generator with the same seed.
namespace tessera::testing::sim {

inline constexpr auto kSim = c10::DeviceType::PrivateUse1;

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Change them before the first use of a device, or while no work is under way.
struct Settings {
  int num_devices = 8;
  std::size_t bytes_of_device = std::size_t{1} << 33;
  /// Kernels wait before they begin: for as long as the seed, the stream and the launch tell, at most so long.
  std::uint64_t delay_seed = 0;
  std::chrono::microseconds longest_delay{0};
  /// How long a kernel takes at least, by operator and bytes that it touches.
  std::function<std::chrono::microseconds(std::string_view op, std::size_t num_bytes)> duration;
};

Settings& settings();

inline c10::Device device(int index = 0) { return {kSim, static_cast<c10::DeviceIndex>(index)}; }

/// Waits for all work of all devices. Throws what went wrong in it.
void synchronise();

/// Of tensors on a device. A block that was freed counts until the streams that it was recorded on have used it.
std::size_t bytes_in_use(int device);
std::size_t peak_bytes(int device);
void reset_peak_bytes(int device);

/// So far, of all devices.
struct Counts {
  std::uint64_t num_launches = 0;
  std::uint64_t num_host_waits = 0;  ///< for streams, events and devices
  /// About events and streams, by threads with another current device: CUDA makes a context on that one too.
  std::uint64_t num_calls_from_elsewhere = 0;
};
Counts counts();

// ---- For kernels of one's own, such as collectives ------------------------------------------------------------------

struct Access {
  at::Tensor tensor;
  bool writes;
};

/// Runs `kernel` on the stream. It may use `on_host` of the tensors, which live until it is over.
void launch(const c10::Stream& stream, const std::string& op, const std::vector<Access>& accesses,
            std::function<void()> kernel);

/// The same bytes as a CPU tensor, for kernels alone.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace tessera::testing::sim
