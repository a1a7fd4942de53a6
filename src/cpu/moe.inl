// Routing and the weighted sum of expert outputs, written once over simd.h. The experts' products are linear.inl's.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// An integer that orders as the logit does: zeros of both signs are equal, NaN comes first.
FORETOKEN_SIMD int32_t rank_key(float logit) {
  int32_t bits;
  __builtin_memcpy(&bits, &logit, sizeof bits);
  if (logit != logit) return INT32_MAX;
  return bits >= 0 ? bits : INT32_MIN - bits;
}

// Insertion into the ranks so far. Experts come by ascending id, so an equal key stays behind.
void route(const float* logits, int experts, int top_k, int32_t* chosen, float* weights) {
  int count = 0;
  int32_t last_key = INT32_MIN;
  for (int e = 0; e < experts; ++e) {
    const int32_t key = rank_key(logits[e]);
    if (count == top_k && key <= last_key) continue;
    int place = count < top_k ? count++ : top_k - 1;
    for (; place > 0 && rank_key(logits[chosen[place - 1]]) < key; --place) chosen[place] = chosen[place - 1];
    chosen[place] = e;
    last_key = rank_key(logits[chosen[count - 1]]);
  }
  float sum = 0;
  for (int j = 0; j < top_k; ++j) {
    alignas(64) float e[16];
    store(e, exp(set_f32(logits[chosen[j]] - logits[chosen[0]])));
    weights[j] = e[0];
    sum += e[0];
  }
  for (int j = 0; j < top_k; ++j) weights[j] = weights[j] / sum;
}

void combine(const CombineTask& task, int64_t begin, int64_t end) {
  alignas(64) float gate[16];
  store(gate, sigmoid(set_f32(task.shared_gate)));
  for (int64_t c = begin; c < end; c += 16) {
    const int rest = end - c < 16 ? static_cast<int>(end - c) : 16;
    F32x16 out = zero_f32();
    for (int j = 0; j < task.top_k; ++j) out = fma(set_f32(task.weights[j]), load_part(task.y[j] + c, rest), out);
    out = fma(set_f32(gate[0]), load_part(task.shared + c, rest), out);
    store_part(task.out + c, out, rest);
  }
}

constexpr MoeKernels moe_kernels() { return {.route = route, .combine = combine}; }

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
