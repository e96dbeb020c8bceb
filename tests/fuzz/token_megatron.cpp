// Any bytes as a pair of Megatron's files. The first byte tells how many of the next ones are tokens; the rest is the
// index. A pair that is taken must be whole: its documents are all its tokens, and all of them can be read.
#include <tessera/core/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/expect.h"
#include "tokens/token_file_state.h"

using namespace tessera;

namespace {

void check_whole(const TokenFile& file, std::size_t num_data_bytes) {
  fuzz::expect(static_cast<std::size_t>(file.num_tokens()) * bytes_of(file.type()) == num_data_bytes,
               "all bytes are tokens");
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < file.num_documents(); ++i) {
    const TokenFile::Range range = file.document(i);
    fuzz::expect(range.begin == end && range.end >= range.begin, "a document begins where the one before it ends");
    end = range.end;
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(range.end - range.begin));
    file.read(range.begin, tokens);
  }
  fuzz::expect(file.num_documents() == 0 || end == file.num_tokens(), "the last document ends with the last token");
  std::vector<std::int64_t> one(1);
  try {
    file.read(file.num_tokens(), one);
    fuzz::expect(false, "nothing can be read beyond the end");
  } catch (const ConfigError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const std::size_t num_data_bytes = std::min<std::size_t>(data[0], bytes.size());
  try {
    const TokenFile file(
        tokens::megatron_state(bytes.subspan(num_data_bytes), "x.idx", bytes.first(num_data_bytes), "x.bin"));
    check_whole(file, num_data_bytes);
  } catch (const ConfigError& error) {
    const std::string_view text(error.what());
    fuzz::expect(text.starts_with("x.idx, byte ") || text.starts_with("x.bin, byte "), "a refusal names the place");
  }
  return 0;
}
