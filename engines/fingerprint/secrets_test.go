package fingerprint

import (
	"slices"
	"strings"
	"testing"
)

func TestScrubArgv(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"serve --api-key abc --port 8000", "serve --api-key (removed) --port 8000"},
		{"serve --api-key -abc --enable-auth --port 1", "serve --api-key (removed) --enable-auth --port 1"},
		{"serve --api-key=abc", "serve --api-key=(removed)"},
		{"serve --admin-api-key abc", "serve --admin-api-key (removed)"},
		{"serve --hf-token hf_x -hft y", "serve --hf-token (removed) -hft (removed)"},
		{"serve --ssl-keyfile-password pw", "serve --ssl-keyfile-password (removed)"},
		{"serve --api-key-file /etc/k", "serve --api-key-file (removed)"},
		{"serve --max-num-batched-tokens 8192 --max-total-tokens=20480", "serve --max-num-batched-tokens 8192 --max-total-tokens=20480"},
		{"serve --enable-prompt-tokens-details --tokenizer x", "serve --enable-prompt-tokens-details --tokenizer x"},
		{"serve --download https://u:pw@h/x?token=abc", "serve --download https://(removed)@h/x?token=(removed)"},
		{`serve --kv-transfer-config {"role":"both","api_key":"abc","n":1}`, `serve --kv-transfer-config {"role":"both","api_key":(removed),"n":1}`},
		{"serve -e HF_TOKEN=hf_abcdefghijklmnopqrst", "serve -e HF_TOKEN=(removed)"},
		{"serve --header Authorization:Bearer|abc.def", "serve --header Authorization:(removed) (removed)"},
		{"serve sk-abcdefghijklmnop nvapi-aaaaaaaaaaaaaaaaa", "serve (removed) (removed)"},
		{"serve eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "serve (removed)"},
		{"serve Zk3Jq9XvBn4Lw8RtYp2Sd6Gh1Mf5Cx7Q", "serve (removed)"},
		{"serve 5559679229bc961848b121ccdeaa8fa5d79bec98 models--nvidia--Qwen3.6-27B-NVFP4", "serve 5559679229bc961848b121ccdeaa8fa5d79bec98 models--nvidia--Qwen3.6-27B-NVFP4"},
	} {
		in := strings.Split(c.in, " ")
		for i := range in {
			in[i] = strings.ReplaceAll(in[i], "|", " ")
		}
		got := strings.Join(ScrubArgv(in), " ")
		if got != c.want {
			t.Errorf("%s\n got  %s\n want %s", c.in, got, c.want)
		}
	}
}

func TestScrubEnv(t *testing.T) {
	got := ScrubEnv(map[string]string{
		"VLLM_API_KEY": "abc", "LLAMA_ARG_HF_TOKEN": "abc", "LLAMA_ARG_CTX_SIZE": "4096", "AWS_SECRET_ACCESS_KEY": "abc", "HF_TOKEN": "abc", "HOME": "/home/u",
		"VLLM_ATTENTION_BACKEND": "FLASHINFER", "CUDA_VISIBLE_DEVICES": "0", "TOKENIZERS_PARALLELISM": "false", "SGLANG_X": "http://a:b@c", "FLASHINFER_DISABLE_VERSION_CHECK": "1",
	})
	want := map[string]string{
		"VLLM_API_KEY": Removed, "LLAMA_ARG_HF_TOKEN": Removed, "LLAMA_ARG_CTX_SIZE": "4096", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "CUDA_VISIBLE_DEVICES": "0",
		"TOKENIZERS_PARALLELISM": "false", "SGLANG_X": "http://" + Removed + "@c", "FLASHINFER_DISABLE_VERSION_CHECK": "1", // bugs.md F02
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
}

// Settings keep what is no secret as it is, and tell two secrets apart without holding them.
func TestScrubSettings(t *testing.T) {
	seen := map[string]string{}
	for _, secret := range []string{"hush-hush-1", "hush-hush-2"} {
		got := ScrubSettings(map[string]string{"env.HF_TOKEN": secret, "env.MY_API_KEY": secret, "env.OMP_NUM_THREADS": "4", "env.URL": "http://u:" + secret + "@h/",
			"extra_args": "--no-webui,--api-key," + secret, "a": "--api-key=" + secret, "b": "--api-key " + secret, "c": `["--api-key", "x,` + secret + `"]`,
			"run_args": "--ipc=host,--env=DB_TOKEN=" + secret, "d": "-e,DB_PASS=" + secret, "opens": "gguf/q4_k_m,safetensors/bf16"})
		for k, v := range got {
			switch k {
			case "env.OMP_NUM_THREADS", "opens":
				if strings.Contains(v, "sha256") {
					t.Errorf("%s is no secret: %s", k, v)
				}
			default:
				if strings.Contains(v, "hush") || !strings.Contains(v, Removed) || seen[k] == v {
					t.Errorf("%s: %s", k, v)
				}
			}
			seen[k] = v
		}
		if !strings.HasPrefix(got["extra_args"], "--no-webui,--api-key,"+Removed) {
			t.Errorf("%q", got["extra_args"])
		}
	}
}

// A value after a flag that names a secret never survives, whatever it looks like.
func FuzzScrub(f *testing.F) {
	f.Add("--api-key", "abc")
	f.Add("--hf-token", "-x")
	f.Add("--max-tokens", "8192")
	f.Fuzz(func(t *testing.T, flag, value string) {
		if strings.ContainsAny(flag, "= ") || !strings.HasPrefix(flag, "--") || len(value) < 8 || longFlag.MatchString(value) || strings.Contains(Removed, value) {
			return
		}
		got := ScrubArgv([]string{"serve", flag + "-api-key", value, flag + "-token=" + value})
		if len(got) != 4 || strings.Contains(got[2], value) || strings.Contains(strings.TrimPrefix(got[3], flag+"-token="), value) {
			t.Errorf("%q", got)
		}
		if again := ScrubArgv(got); !slices.Equal(again, got) {
			t.Errorf("scrubbing twice gives %q then %q", got, again)
		}
	})
}

func FuzzMaps(f *testing.F) {
	f.Add([]byte("7f-80 r-xp 00000000 08:01 42                   /usr/lib/a b.so (deleted)\n00-01 rw-p 0 00:00 0\n"))
	f.Add([]byte("7f-80 r-xp 0 0 18446744073709551616 /x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		maps, err := parseMaps(b)
		for _, m := range maps {
			if err == nil && (m.inode == 0 || !strings.HasPrefix(m.path, "/")) {
				t.Errorf("%+v", m)
			}
		}
	})
}

func FuzzCMake(f *testing.F) {
	f.Add([]byte("GGML_CUDA:BOOL=ON\nCMAKE_HOME_DIRECTORY:INTERNAL=/x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, digest := cmakeFacts(b, "CMakeCache.txt", func(string) string { return "/nonexistent" })
		if digest == "" || len(facts) == 0 {
			t.Error("no digest")
		}
	})
}
