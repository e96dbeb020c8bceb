#pragma once

#include <tessera/tokens/token_writer.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace tessera::testing {

/// A token file of documents of these lengths. Tokens count from `first` through all of them.
inline TokenFile counting_file(const TemporaryFolder& folder, const std::string& name,
                               std::initializer_list<std::int64_t> lengths, std::int64_t first = 0,
                               TokenFormat format = TokenFormat::kMegatron) {
  TokenFileWriter writer(folder.file(name), format, TokenType::kUint16);
  for (const std::int64_t length : lengths) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(length));
    for (std::int64_t& token : tokens) token = first++;
    writer.add_document(tokens);
  }
  writer.finish();
  return TokenFile::open(folder.file(name));
}

}  // namespace tessera::testing
