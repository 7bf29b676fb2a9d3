/* What a split costs over ggml's RPC backend on loopback, as `benchmarks.bench_cluster` measures it for ggsched: a chain
 * of nodes of 4,096 floats that changes the device with each node, of 3 and of 67 nodes.
 *
 * Build ggml with -DGGML_RPC=ON -DBUILD_SHARED_LIBS=OFF in a folder b, and then:
 *
 *   g++ -O2 -std=c++17 -I GGML/include rpc_split.cpp -o rpc_split -Wl,--start-group b/src/libggml.a \
 *     b/src/ggml-rpc/libggml-rpc.a b/src/libggml-cpu.a b/src/libggml-base.a -Wl,--end-group -lpthread -ldl
 *   ./rpc_split server & ./rpc_split
 */
#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rpc.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>
static double run(ggml_backend_t rpc, ggml_backend_t cpu, int nodes, std::vector<double> &all) {
    ggml_init_params p = {ggml_tensor_overhead() * 1024 + ggml_graph_overhead_custom(1024, false), nullptr, true};
    ggml_context *c = ggml_init(p);
    ggml_tensor *x = ggml_new_tensor_1d(c, GGML_TYPE_F32, 4096), *first = x;
    ggml_set_input(x);
    ggml_backend_t backends[2] = {rpc, cpu};
    ggml_backend_sched_t s = ggml_backend_sched_new(backends, nullptr, 2, 1024, false, false);
    ggml_cgraph *g = ggml_new_graph_custom(c, 1024, false);
    std::vector<ggml_tensor *> made;
    for (int i = 0; i < nodes; i++) made.push_back(x = ggml_scale(c, x, 0.5f));
    ggml_set_output(x);
    ggml_build_forward_expand(g, x);
    for (int i = 0; i < nodes; i++) ggml_backend_sched_set_tensor_backend(s, made[i], i % 2 ? rpc : cpu);
    if (!ggml_backend_sched_alloc_graph(s, g)) return -1;
    std::vector<float> v(4096, 1.0f);
    for (int r = 0; r < 400; r++) {
        auto t = std::chrono::steady_clock::now();
        ggml_backend_tensor_set(first, v.data(), 0, 4096 * 4);
        ggml_backend_sched_graph_compute(s, g);
        ggml_backend_tensor_get(x, v.data(), 0, 4096 * 4);
        all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - t).count());
        std::fill(v.begin(), v.end(), 1.0f);
    }
    if (nodes < 10) printf("splits %d for %d nodes\n", ggml_backend_sched_get_n_splits(s), nodes);
    std::sort(all.begin(), all.end());
    return all[0];
}
int main(int n, char **) {
    if (n > 1) {
        ggml_backend_dev_t d = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        ggml_backend_rpc_start_server("127.0.0.1:50999", nullptr, 1, 1, &d);
        return 0;
    }
    ggml_backend_t rpc = ggml_backend_rpc_init("127.0.0.1:50999", 0), cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    std::vector<double> s, l;
    double a0 = run(rpc, cpu, 3, s), b0 = run(rpc, cpu, 67, l);
    printf("a split: best %.1f us, median %.1f us\n", (b0 - a0) / 64, (l[200] - s[200]) / 64);
}
