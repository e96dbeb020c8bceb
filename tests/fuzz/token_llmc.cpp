// Any bytes as a file of llm.c's.
#include <tessera/core/error.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/expect.h"
#include "tokens/token_file_state.h"
#include "tokens/token_formats.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const TokenFile file(tokens::llmc_state(bytes, "x.bin"));
    fuzz::expect(tokens::is_llmc(bytes), "what is taken begins like a file of llm.c's");
    std::vector<std::int64_t> all(static_cast<std::size_t>(file.num_tokens()));
    file.read(0, all);
    for (const std::int64_t token : all) {
      fuzz::expect(token >= 0 && token <= largest_token(file.type()), "tokens are what the type holds");
    }
    const std::string header = tokens::llmc_header({file.format(), file.num_tokens()});
    fuzz::expect(header == std::string_view(reinterpret_cast<const char*>(data), header.size()),
                 "the header is the one that would be written");
  } catch (const ConfigError& error) {
    fuzz::expect(std::string_view(error.what()).starts_with("x.bin, byte "), "a refusal names the place");
  }
  return 0;
}
