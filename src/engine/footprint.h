// What one model takes of memory, part by part, as functions of its shapes: weights, what a lane keeps, pages, and the working memory of a
// pass. It follows what the model and the CPU's operators allocate, and decides nothing. Sizes are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decode/draft_models.h"
#include "model/config.h"
#include "model/target.h"

namespace foretoken {

// The largest passes that will run.
struct PassShape {
  int rows = 0;          // of any pass: a prompt chunk, or the rows of a decode cycle
  int logits_rows = 0;   // of a decode cycle: rows whose logits are wanted
  int lanes = 1;
  int64_t context = 0;   // tokens of one lane
};

// One buffer that grows to the largest pass.
struct ScratchBuffer {
  uint64_t per_row = 0, per_logits_row = 0, per_lane = 0, per_span = 0, fixed = 0;  // per_span: of kSpanTokens of context
  int most_rows = 0;      // 0: as many as the pass has
  bool spare = false;     // allocated half as large again

  uint64_t bytes(const PassShape& pass) const;
};

struct ModelFootprint {
  int vocab = 0;
  int64_t max_positions = 0;
  // ---- Once
  uint64_t program = 0;          // code, tokenizer, threads
  uint64_t weights = 0;          // packed by this process: memory that cannot be dropped
  uint64_t mapped = 0;           // weights read where a file mapping has them: the kernel drops and rereads them
  uint64_t drafter_weights = 0;
  std::vector<ScratchBuffer> scratch;
  // ---- For each lane
  uint64_t state = 0;            // recurrent state and convolution tails
  uint64_t tape = 0;
  uint64_t drafter_lane = 0;     // windows, and rows waiting for the drafter
  uint64_t sampling = 0;
  // ---- For each token of a lane's context
  uint64_t history_token = 0;    // ids, and the index of the copying drafter
  // ---- For each page of kPageTokens
  uint64_t page = 0, drafter_page = 0;  // of the trunk's K/V; of drafters that see the whole context
  uint64_t pages_per_slab = 1;
  // ---- One entry of the prefix cache, its pages not counted
  uint64_t checkpoint = 0;

  uint64_t kv_token() const { return page / kPageTokens; }
  uint64_t lane() const { return state + tape + drafter_lane + sampling; }
  uint64_t scratch_of(const PassShape& pass) const;
};

// What weights take, judged from headers.
struct WeightSizes {
  uint64_t packed = 0, mapped = 0, drafter = 0;
};
// `cached_bytes`: of the file that an earlier load packed the trunk into, where one will be found; then the trunk is mapped.
Result<WeightSizes> weight_sizes(const Bundle& bundle, const ModelConfig& config, const DraftResolution& drafts, const DraftSettings& settings,
                                 uint64_t cached_bytes = 0);

// Which drafters run beside the model. `block` is borrowed; null: none.
struct DrafterShapes {
  bool copy = false, mtp = false;
  const DflashConfig* block = nullptr;
};

// What backends need to know beside the shapes. The sums are those of the CPU's operators; a backend with less working memory takes less.
struct FootprintOptions {
  KvFormat kv_format = KvFormat::kBF16;
  int tape_rows = TargetOptions{}.tape_rows;
  int threads = 1;
};

ModelFootprint footprint_of(const ModelConfig& config, const WeightSizes& weights, const DrafterShapes& drafters, const FootprintOptions& options);

}  // namespace foretoken
