#include "observe/process_memory.h"

#include <tessera/core/descriptor.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace tessera::observe {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::array<char, 128> text{};  // "size resident shared ...", in pages
  const Descriptor file(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  if (file && read(file.get(), text.data(), text.size() - 1) > 0) {
    const char* resident = std::strchr(text.data(), ' ');
    std::int64_t num_pages = 0;
    if (resident != nullptr) std::from_chars(resident + 1, text.data() + text.size(), num_pages);
    memory.resident_bytes = num_pages * sysconf(_SC_PAGESIZE);
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) memory.peak_bytes = usage.ru_maxrss * std::int64_t{1024};
  // The kernel counts the two apart, and the peak lags behind.
  memory.peak_bytes = std::max(memory.peak_bytes, memory.resident_bytes);
  return memory;
}

}  // namespace tessera::observe
