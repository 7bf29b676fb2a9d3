"""What kernels are generated for: the instructions of a processor."""

from dataclasses import dataclass
from typing import Final, Literal

Dot = Literal["none", "pmaddubsw", "vnni", "avxvnni", "sdot"]
"""Instruction for products of bytes: none of them, or as called by the makers."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor.

    Attributes:
        triple: As LLVM calls machine and system.
        cpu: Name of the processor in LLVM.
        features: For LLVM, ``+`` or ``-`` before each.
    """

    triple: str
    cpu: str
    features: str

    def has(self, *features: str) -> bool:
        """Whether it has all of some features."""
        return set(features) <= {f[1:] for f in self.features.split(",") if f[:1] == "+"}

    @property
    def is_x86(self) -> bool:
        """Whether it is an x86-64."""
        return self.triple.startswith("x86_64")

    @property
    def has_avx512(self) -> bool:
        """Whether vectors of 512 bits have every instruction that kernels use."""
        return self.is_x86 and self.has("avx512f", "avx512bw", "avx512dq", "avx512vl")

    @property
    def is_supported(self) -> bool:
        """Whether it has what LLVM calls a library for otherwise: f16, fused products."""
        if self.is_x86:
            return self.has("avx2", "fma", "f16c")
        return self.triple.startswith(("aarch64", "arm64"))  # the latter on macOS

    @property
    def lanes(self) -> int:
        """Floats of a register."""
        return 16 if self.has_avx512 else 8 if self.is_x86 else 4

    @property
    def fetches_streams(self) -> bool:
        """Whether kernels that wait for memory are faster if they leave fetching to the processor.

        Measured on Zen 4: f32, f16, bf16 and q8_0 by 20 to 35 %, where one vector follows another
        into one sum. Loads that run further ahead of their use disturb the fetching, and so does
        what is fetched 2 to 8 KB ahead beside one row of activations. Long rows of f32, f16 and
        bf16 are read eight at a time (``ggsched_cpu.kernels.rows_together``).
        """
        return self.cpu == "znver4"

    @property
    def fetches_past_caches(self) -> bool:
        """Whether weights are fetched into the first cache alone (``prefetchnta``).

        Measured on Zen 5: 10 to 30 % faster from memory than in two steps, and the second and third
        cache keep what the host uses between two tokens. On Intel it is half the rate.
        """
        return self.cpu == "znver5"

    @property
    def dot(self) -> Dot:
        """See ``Dot``."""
        if self.is_x86:
            if self.has_avx512 and self.has("avx512vnni"):
                return "vnni"
            return "avxvnni" if self.has("avxvnni") else "pmaddubsw"
        return "sdot" if self.has("dotprod") else "none"

    @property
    def title(self) -> str:
        """For people."""
        vectors = "AVX-512" if self.has_avx512 else "AVX2" if self.is_x86 else "NEON"
        return f"{self.cpu} ({vectors})"


AVX2: Final = Target("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt")
AVX512: Final = Target(
    "x86_64-unknown-linux-gnu",
    "icelake-server",
    "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni",
)
AARCH64: Final = Target("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fullfp16,+dotprod")
"""Targets that tests compile for, whatever the host is."""
