/* Gates, copies that lanes wait for, and barriers of some lanes; behind fibers.cpp.
 *
 * A copy arrives when lanes wait and a seeded choice says so, after others that began later or before them. Until
 * then its place holds no numbers, since a machine may begin to write there at once. Lanes take naps of
 * different lengths, so that they are far apart. */
#include <map>

struct Gate_ { int lanes, missing; long nbytes; int phase; };
struct Span_ { unsigned char *to; const unsigned char *from; int nbytes; const void *gate; };
static std::map<const void *, Gate_> gates_;
static std::vector<Span_> under_way_;
static std::vector<std::pair<const unsigned char *, long>> readable_;
static Barrier some_;
static const char *complaint_;
static unsigned drawn_, seldom_;
static int local_nbytes_;

#define STAGES_LINE 128
unsigned char *stages_() {
  size_t at = (size_t)local_();
  return (unsigned char *)((at + STAGES_LINE - 1) / STAGES_LINE * STAGES_LINE);
}
static inline void expect_(bool holds, const char *what) {
  if (!holds && !complaint_) complaint_ = what;
}
static inline unsigned draw_(unsigned count) {
  drawn_ = drawn_ * 1664525u + 1013904223u;
  return (drawn_ >> 8) % count;
}
static inline void nap_(int seldom, int most) {
  for (int turns = draw_(seldom) ? 0 : draw_(most); turns > 0; turns--) yield_();
}

static inline Gate_ &gate_(const void *gate) {
  expect_(gates_.count(gate), "a gate is used before it is open");
  return gates_[gate];
}
static inline void gate_moves_(Gate_ &g) {
  arrivals_++;
  if (g.missing == 0 && g.nbytes == 0) g.phase ^= 1, g.missing = g.lanes;
}
void host_gate_open_(void *gate, int lanes) { gates_[gate] = {lanes, lanes, 0, 0}; }
void host_gate_arrive_(void *gate, int nbytes) {
  Gate_ &g = gate_(gate);
  expect_(g.missing > 0, "more lanes arrive at a gate than it has");
  g.nbytes += nbytes, g.missing--;
  gate_moves_(g);
}
void host_copy_span_(unsigned char *to, const unsigned char *from, int nbytes, const void *gate) {
  bool is_readable = false;
  for (auto &r : readable_) is_readable |= from >= r.first && from + nbytes <= r.first + r.second;
  expect_(nbytes > 0 && nbytes % 16 == 0, "a copy of no pieces of 16 bytes");
  expect_((size_t)from % 16 == 0 && (size_t)to % 16 == 0, "a copy between places that are not aligned");
  bool is_local = to >= stages_() && to + nbytes <= stages_() + local_nbytes_;
  expect_(is_local, "a copy to what is not local memory");
  expect_(is_readable, "a copy of what is no operand");
  long waited_for = 0;
  for (auto &s : under_way_) waited_for += s.gate == gate ? s.nbytes : 0;
  expect_(gate_(gate).nbytes >= waited_for + nbytes, "a copy that was not announced");
  if (complaint_) return;
  memset(to, 0xff, nbytes);
  under_way_.push_back({to, from, nbytes, gate});
}
static inline void perhaps_a_copy_arrives_() {
  if (under_way_.empty() || draw_(seldom_)) return;
  size_t which = draw_(under_way_.size());
  Span_ s = under_way_[which];
  under_way_.erase(under_way_.begin() + which);
  memcpy(s.to, s.from, s.nbytes);
  Gate_ &g = gate_(s.gate);
  g.nbytes -= s.nbytes;
  gate_moves_(g);
}
void host_gate_await_(const void *gate, int phase) {
  nap_(64, 50);
  while (gate_(gate).phase == phase && !complaint_) {
    perhaps_a_copy_arrives_();
    if (gate_(gate).phase == phase) yield_();
  }
}
void meet_some_(int lanes) {
  some_.of = lanes;
  meet_(some_);
  nap_(32, 400);
}

int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += (signed char)(a >> i) * (signed char)(b >> i);
  return sum;
}
unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}
/* What a lane has of a, b and the sum is what the machine-independent code says of mma.m16n8k32 for bytes. */
struct Fragments_ { unsigned a[4], b[2]; };
static std::vector<Fragments_> fragments_;
/* Return what the lanes of this warp have. */
static const Fragments_ *given_by_lanes_(const unsigned *a, const unsigned *b) {
  fragments_.resize(fibers_.size());
  fragments_[32 * now_->warp + now_->lane % 32] = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  __syncwarp();
  return &fragments_[32 * now_->warp];
}
void host_multiply_add_(int *sum, const unsigned *a, const unsigned *b) {
  const Fragments_ *lanes = given_by_lanes_(a, b);
  int group = now_->lane % 32 / 4, thread = now_->lane % 4;
  for (int i = 0; i < 4; i++) {
    int row = group + (i < 2 ? 0 : 8), column = thread * 2 + i % 2;
    for (int k = 0; k < 32; k++) {
      int has = k % 16 / 4, byte = k % 4 * 8;
      unsigned of_a = lanes[row % 8 * 4 + has].a[(row >= 8) + 2 * (k >= 16)];
      unsigned of_b = lanes[column * 4 + has].b[k >= 16];
      sum[i] += (signed char)(of_a >> byte) * (signed char)(of_b >> byte);
    }
  }
  __syncwarp();
}
/* The same for mma.m16n8k16 of 16-bit numbers: lane 4 g + t has of a pairs 2 t of rows g and g + 8, and those 8
 * further; of b those of column g. */
static inline float half_(unsigned pair, int high, bool is_bf16) {
  unsigned bits = high ? pair >> 16 : pair & 65535;
  return is_bf16 ? __uint_as_float(bits << 16) : host_float_of_half_(bits);
}
void host_multiply_halves_(float *sum, const unsigned *a, const unsigned *b, bool are_bf16) {
  const Fragments_ *lanes = given_by_lanes_(a, b);
  int group = now_->lane % 32 / 4, thread = now_->lane % 4;
  for (int i = 0; i < 4; i++) {
    int row = group + (i < 2 ? 0 : 8), column = thread * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      int has = k % 8 / 2;
      unsigned of_a = lanes[row % 8 * 4 + has].a[(row >= 8) + 2 * (k >= 8)];
      sum[i] += half_(of_a, k % 2, are_bf16) * half_(lanes[column * 4 + has].b[k >= 8], k % 2, are_bf16);
    }
  }
  __syncwarp();
}
/* Eight of these, of rows of b in shared memory whose pieces of 16 bytes lie apart by their rows: for wgmma.m64n64k16. */
void host_multiply_group_(float *sum, const unsigned *a, const unsigned char *b, bool adds, bool are_bf16) {
  int row = now_->lane % 32 / 4, thread = now_->lane % 4, chunk = (size_t)b % 128 / 16;
  for (int i = 0; i < 8; i++) {
    const unsigned char *of_row = b - (size_t)b % 128 + (8 * i + row) * 128;
    unsigned pairs[2];
    for (int k = 0; k < 2; k++) memcpy(pairs + k, of_row + ((chunk + k) ^ row) * 16 + 4 * thread, 4);
    for (int j = 0; j < 4 && !adds; j++) sum[4 * i + j] = 0.0f;
    host_multiply_halves_(sum + 4 * i, a, pairs, are_bf16);
  }
}
/* The same of columns of b. */
void host_multiply_turned_(float *sum, const unsigned *a, const unsigned char *b, bool adds, bool are_bf16) {
  int column = now_->lane % 32 / 4, thread = now_->lane % 4;
  for (int i = 0; i < 8; i++) {
    unsigned short halves[4];
    for (int j = 0; j < 4; j++) {
      int k = 2 * thread + j % 2 + j / 2 * 8;
      memcpy(halves + j, b + k * 128 + (i ^ k % 8) * 16 + 2 * column, 2);
    }
    unsigned pairs[2] = {halves[0] | (unsigned)halves[1] << 16, halves[2] | (unsigned)halves[3] << 16};
    for (int j = 0; j < 4 && !adds; j++) sum[4 * i + j] = 0.0f;
    host_multiply_halves_(sum + 4 * i, a, pairs, are_bf16);
  }
}
/* The same for mma.m16n8k8 of TF32, of which a product reads 19 bits: words t and t + 4 of a row. */
static inline float of_tf32_(unsigned bits) { return __uint_as_float(bits & ~0x1fffu); }
void host_multiply_tf32_(float *sum, const unsigned *a, const unsigned *b) {
  const Fragments_ *lanes = given_by_lanes_(a, b);
  int group = now_->lane % 32 / 4, thread = now_->lane % 4;
  for (int i = 0; i < 4; i++) {
    int column = thread * 2 + i % 2;
    for (int k = 0; k < 8; k++)
      sum[i] += of_tf32_(lanes[group * 4 + k % 4].a[i / 2 + 2 * (k / 4)]) * of_tf32_(lanes[column * 4 + k % 4].b[k / 4]);
  }
  __syncwarp();
}
unsigned host_tf32_of_(float x) {
  unsigned bits = __float_as_uint(x);
  return x - x == 0.0f ? bits + 0x1000u & ~0x1fffu : bits;
}
/* Four matrices of 8 x 8 halves; lane 8 i + r says where row r of matrix i is. */
static std::vector<const unsigned char *> places_;
void host_load_matrices_(unsigned *to, const unsigned char *p, bool is_turned) {
  expect_((size_t)p % 16 == 0, "a row of a matrix that is not aligned");
  places_.resize(fibers_.size());
  places_[now_->lane + 32 * now_->warp - now_->lane / 32 * 32] = p;
  __syncwarp();
  int g = now_->lane % 32 / 4, t = now_->lane % 4;
  for (int i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (int e = 0; e < 2; e++) {
      int row = is_turned ? 2 * t + e : g, column = is_turned ? g : 2 * t + e;
      memcpy(&pair[e], places_[32 * now_->warp + 8 * i + row] + 2 * column, 2);
    }
    to[i] = pair[0] | (unsigned)pair[1] << 16;
  }
  __syncwarp();
}
static inline unsigned half_of_(float x, bool is_bf16) {
  unsigned bits = __float_as_uint(x);
  return is_bf16 ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : host_half_of_float_(x);
}
unsigned host_pair_of_(float low, float high, bool are_bf16) {
  return half_of_(low, are_bf16) | half_of_(high, are_bf16) << 16;
}
unsigned host_sub_halves_(unsigned a, unsigned b) {
  unsigned low = host_half_of_float_(host_float_of_half_(a & 65535) - host_float_of_half_(b & 65535));
  return low | (unsigned)host_half_of_float_(host_float_of_half_(a >> 16) - host_float_of_half_(b >> 16)) << 16;
}
unsigned host_multiply_pairs_(unsigned a, unsigned b) {
  unsigned low = host_half_of_float_(host_float_of_half_(a & 65535) * host_float_of_half_(b & 65535));
  return low | (unsigned)host_half_of_float_(host_float_of_half_(a >> 16) * host_float_of_half_(b >> 16)) << 16;
}
unsigned host_permuted_or_sign_(unsigned a, unsigned b, unsigned selector) {
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    unsigned which = selector >> 4 * i & 15, byte = (which & 4 ? b : a) >> which % 4 * 8 & 255;
    result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return result;
}
unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? high : (unsigned)(((unsigned long long)high << 32 | low) >> shift);
}
unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

extern "C" const char *complaint() { return complaint_ ? complaint_ : "lanes wait for ever"; }
extern "C" void begin_run(unsigned seed) {
  static const unsigned every[] = {1, 100, 1000};
  drawn_ = seed, seldom_ = every[seed % 3];
  readable_.clear();
}
/* Copies may read these bytes, and what shares pieces of 16 with them. */
extern "C" void may_be_copied(const unsigned char *from, long nbytes) {
  const unsigned char *first = from - (size_t)from % 16, *end = from + nbytes;
  readable_.push_back({first, end - first + (16 - (size_t)end % 16) % 16});
}
int run_gated_(int count, int y, int z, int lanes, int local_nbytes, void (*kernel)()) {
  gates_.clear(), under_way_.clear();
  some_ = {}, complaint_ = nullptr, local_nbytes_ = local_nbytes;
  int done = run_cluster_(count, y, z, lanes, local_nbytes + STAGES_LINE, kernel);
  expect_(!done || under_way_.empty(), "a group ends before its copies have arrived");
  return done && !complaint_;
}
