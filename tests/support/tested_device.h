#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

/// The kind of device that tests/device is run on, chosen by CMake's TESSERA_TEST_DEVICE: the simulated one
/// (simulated_device.cpp), or CUDA's (cuda_device.cpp). A test that says nothing of `sim` runs on either.
namespace tessera::testing::tested {

extern const c10::DeviceType kDevice;
/// Its kernels are those of the CPU, and so are its bits. Kernels of others add in another order: see `same_values()`.
extern const bool kSameKernels;
/// Its kernels take as long as a test says, and it counts what the host waits for. Tests that need this skip without.
extern const bool kSimulated;

inline c10::Device device(int index = 0) { return {kDevice, static_cast<c10::DeviceIndex>(index)}; }
/// As torch::Device prints a kind: "sim" or "cuda".
std::string name();
int num_devices();

/// Lets tensors of these devices travel between ranks, where the library does not do so by itself.
void connect();
/// Waits for all work of all devices. Throws what went wrong in it.
void synchronise();
/// What tests changed is as at the start.
void reset();

/// Kernels and collectives begin late by chance, up to so much. Real devices are late as they are.
void delay(std::uint64_t seed, std::chrono::microseconds longest);

/// Kernels take at least so long, by operator and bytes; an empty function: as long as they take. Without effect on
/// real devices.
using Duration = std::function<std::chrono::microseconds(std::string_view op, std::size_t num_bytes)>;
void kernels_take(Duration duration);

/// Runs what the host must launch without a wait for a device, and throws if it waited. Other ranks may wait for other
/// hosts meanwhile, but for no device.
void require_no_host_waits(const std::string& what, const std::function<void()>& launch);
/// How often the host waited so far, in all ranks that are threads; nothing where nobody counts.
std::optional<std::uint64_t> num_host_waits();

/// Bytes of tensors.
std::size_t bytes_in_use(int device);
std::size_t peak_bytes(int device);
void reset_peak_bytes(int device);

}  // namespace tessera::testing::tested
