package server

// shape is how a dialect writes its answers. Field names, order and place follow captured answers of vLLM 0.32.0,
// SGLang 0.5.23, llama-server b11669 and vllm.cpp d85906ae.
type shape struct {
	owner       string // of the model card
	server      string // Server header
	contentType string // of a stream
	// chunk is one event of a stream; choice is nil for the usage chunk.
	chunk  func(r *request, choice object, usage object) object
	choice func(r *request, c content) object
	usage  func(r *request, n int) object
	// answer is a whole answer that is not streamed.
	answer func(r *request, c content, usage object) object
	// inFinish puts the usage of completions into the finish chunk.
	inFinish bool
	error    func(status int, kind, message string) object
}

// content is what one event or answer carries.
type content struct {
	text   string
	ids    []int
	finish string // empty: not finished
	role   bool   // the first chunk of a chat
	first  bool   // the first event with text
}

var shapes = map[string]shape{"vllm": vllm(), "sglang": sglang(), "llamacpp": llamacpp(), "vllmcpp": vllmcpp()}

func finish(c content) any {
	if c.finish == "" {
		return nil
	}
	return c.finish
}

// named returns the object type of an answer, of completions or of a chat.
func (r *request) named(stream bool) string {
	switch {
	case !r.chat:
		return "text_completion"
	case stream:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func optionalIDs(r *request, ids []int) any {
	if r.ReturnIDs {
		return ids
	}
	return nil
}

func vllm() shape {
	return shape{
		owner: "vllm", server: "uvicorn", contentType: "text/event-stream; charset=utf-8",
		chunk: func(r *request, choice, usage object) object {
			o := object{"id", r.id, "object", r.named(true), "created", r.created, "model", r.model, "choices", choices(choice)}
			if choice != nil && r.chat && r.events == 0 {
				o = append(o, "prompt_token_ids", nil, "prompt_text", nil)
			}
			if usage != nil {
				o = append(o, "usage", usage)
			}
			if choice == nil {
				o = append(o, "system_fingerprint", r.fingerprint)
			}
			return o
		},
		choice: func(r *request, c content) object {
			if r.chat {
				o := object{"index", 0, "delta", delta(c, ""), "logprobs", nil, "finish_reason", finish(c)}
				if c.finish != "" {
					o = append(o, "stop_reason", nil)
				}
				if !c.role {
					o = append(o, "token_ids", optionalIDs(r, c.ids))
				}
				return o
			}
			var prompt any
			if c.first {
				prompt = optionalIDs(r, r.prompt)
			}
			return object{"index", 0, "text", c.text, "logprobs", nil, "finish_reason", finish(c), "stop_reason", nil,
				"prompt_token_ids", prompt, "token_ids", optionalIDs(r, c.ids)}
		},
		usage: func(r *request, n int) object {
			o := object{"prompt_tokens", r.promptTokens, "total_tokens", r.promptTokens + n, "completion_tokens", n}
			if r.cached > 0 {
				o = append(o, "prompt_tokens_details", object{"cached_tokens", r.cached})
			}
			return o
		},
		answer: func(r *request, c content, usage object) object {
			choice := object{"index", 0, "text", c.text, "logprobs", nil, "finish_reason", finish(c), "stop_reason", nil,
				"token_ids", optionalIDs(r, c.ids), "prompt_logprobs", nil, "prompt_token_ids", optionalIDs(r, r.prompt), "routed_experts", nil}
			if r.chat {
				choice = object{"index", 0, "message", object{"role", "assistant", "content", c.text}, "logprobs", nil,
					"finish_reason", finish(c), "stop_reason", nil, "token_ids", optionalIDs(r, c.ids)}
			}
			if r.cached == 0 {
				usage = append(usage, "prompt_tokens_details", nil)
			}
			return object{"id", r.id, "object", r.named(false), "created", r.created, "model", r.model, "choices", choices(choice),
				"service_tier", nil, "system_fingerprint", r.fingerprint, "usage", append(usage, "completion_tokens_details", nil),
				"kv_transfer_params", nil, "ec_transfer_params", nil, "metrics", nil}
		},
		error: func(status int, kind, message string) object {
			return object{"error", object{"message", message, "type", kind, "param", nil, "code", status}}
		},
	}
}

func sglang() shape {
	return shape{
		owner: "sglang", server: "uvicorn", contentType: "text/event-stream; charset=utf-8",
		chunk: func(r *request, choice, usage object) object {
			o := object{"id", r.id, "object", r.named(true), "created", r.created, "model", r.model, "choices", choices(choice)}
			if choice == nil {
				if r.chat && r.cached == 0 {
					usage = append(usage, "prompt_tokens_details", nil)
				}
				if r.chat {
					usage = append(usage, "completion_tokens_details", nil)
				}
				// SGLang has no fingerprint of its own; the stamp is what makes simulated data tell itself apart.
				return append(o, "usage", usage, "system_fingerprint", r.fingerprint)
			}
			switch {
			case usage != nil:
				if r.cached == 0 {
					usage = append(usage, "prompt_tokens_details", nil)
				}
				o = append(o, "usage", append(usage, "completion_tokens_details", nil))
			case !r.chat:
				o = append(o, "usage", nil)
			}
			return o
		},
		choice: func(r *request, c content) object {
			if r.chat {
				d := append(object{"reasoning_content", nil}, delta(c, "")...)
				return object{"index", 0, "delta", d, "logprobs", nil, "finish_reason", finish(c), "matched_stop", nil}
			}
			o := object{"index", 0, "text", c.text, "logprobs", nil, "finish_reason", finish(c), "matched_stop", nil}
			if r.ReturnIDs {
				o = append(o, "token_ids", c.ids)
				if c.first {
					o = append(o, "prompt_token_ids", r.prompt)
				}
			}
			return o
		},
		usage: func(r *request, n int) object {
			o := object{"prompt_tokens", r.promptTokens, "total_tokens", r.promptTokens + n, "completion_tokens", n, "reasoning_tokens", 0}
			if r.cached > 0 {
				o = append(o, "prompt_tokens_details", object{"cached_tokens", r.cached})
			}
			return o
		},
		answer: func(r *request, c content, usage object) object {
			choice := object{"index", 0, "text", c.text, "logprobs", nil, "finish_reason", finish(c), "matched_stop", nil}
			if r.chat {
				choice = object{"index", 0, "message", object{"role", "assistant", "content", c.text, "reasoning_content", nil}, "logprobs", nil,
					"finish_reason", finish(c), "matched_stop", nil}
			} else if r.ReturnIDs {
				choice = append(choice, "token_ids", c.ids, "prompt_token_ids", r.prompt)
			}
			if r.cached == 0 {
				usage = append(usage, "prompt_tokens_details", nil)
			}
			return object{"id", r.id, "object", r.named(false), "created", r.created, "model", r.model, "choices", choices(choice),
				"usage", append(usage, "completion_tokens_details", nil),
				"metadata", object{"weight_version", "default", "weight_versions", []object{{"version", "default", "start", 0, "end", len(c.ids)}}},
				"system_fingerprint", r.fingerprint}
		},
		error: func(status int, kind, message string) object {
			return object{"object", "error", "message", message, "type", kind, "param", nil, "code", status}
		},
	}
}

func llamacpp() shape {
	return shape{
		owner: "llamacpp", server: "llama.cpp", contentType: "text/event-stream", inFinish: true,
		chunk: func(r *request, choice, usage object) object {
			o := object{"choices", choices(choice), "created", r.created, "model", r.model, "system_fingerprint", r.fingerprint, "object", r.named(true)}
			if usage != nil {
				o = append(o, "usage", usage)
			}
			o = append(o, "id", r.id)
			if usage != nil || r.Timings {
				o = append(o, "timings", r.timings())
			}
			return o
		},
		choice: func(r *request, c content) object {
			if r.chat {
				return object{"finish_reason", finish(c), "index", 0, "delta", delta(c, "llamacpp")}
			}
			return object{"text", c.text, "index", 0, "logprobs", nil, "finish_reason", finish(c)}
		},
		usage: func(r *request, n int) object {
			return object{"completion_tokens", n, "prompt_tokens", r.promptTokens, "total_tokens", r.promptTokens + n,
				"prompt_tokens_details", object{"cached_tokens", r.cached}}
		},
		answer: func(r *request, c content, usage object) object {
			choice := object{"text", c.text, "index", 0, "logprobs", nil, "finish_reason", finish(c)}
			if r.chat {
				choice = object{"finish_reason", finish(c), "index", 0, "message", object{"role", "assistant", "content", c.text}}
			}
			return object{"choices", choices(choice), "created", r.created, "model", r.model, "system_fingerprint", r.fingerprint,
				"object", r.named(false), "usage", usage, "id", r.id, "timings", r.timings()}
		},
		error: func(status int, kind, message string) object {
			return object{"error", object{"code", status, "message", message, "type", kind}}
		},
	}
}

func vllmcpp() shape {
	return shape{
		owner: "vllm", contentType: "text/event-stream",
		chunk: func(r *request, choice, usage object) object {
			o := object{"choices", choices(choice), "created", r.created, "id", r.id, "model", r.model, "object", r.named(true)}
			if usage != nil {
				o = append(o, "usage", usage)
			}
			if choice == nil {
				// As for SGLang: the stamp is ours, the engine has none.
				o = append(o, "system_fingerprint", r.fingerprint)
			}
			return o
		},
		choice: func(r *request, c content) object {
			if r.chat {
				return object{"delta", delta(c, "vllmcpp"), "finish_reason", finish(c), "index", 0}
			}
			return object{"finish_reason", finish(c), "index", 0, "text", c.text}
		},
		usage: func(r *request, n int) object {
			o := object{"completion_tokens", n, "prompt_tokens", r.promptTokens, "total_tokens", r.promptTokens + n}
			if r.cached > 0 {
				o = append(o, "prompt_tokens_details", object{"cached_tokens", r.cached})
			}
			return o
		},
		answer: func(r *request, c content, usage object) object {
			choice := object{"finish_reason", finish(c), "index", 0, "text", c.text}
			if r.chat {
				choice = object{"finish_reason", finish(c), "index", 0, "message", object{"content", c.text, "role", "assistant"}}
			}
			return object{"choices", choices(choice), "created", r.created, "id", r.id, "model", r.model, "object", r.named(false),
				"usage", usage, "system_fingerprint", r.fingerprint}
		},
		error: func(status int, kind, message string) object {
			return object{"error", object{"code", status, "message", message, "param", nil, "type", kind}}
		},
	}
}

func choices(choice object) []object {
	if choice == nil {
		return []object{}
	}
	return []object{choice}
}

// delta is what a chat chunk adds.
func delta(c content, dialect string) object {
	switch {
	case c.role && dialect == "llamacpp":
		return object{"role", "assistant", "content", nil}
	case c.role && dialect == "vllmcpp":
		return object{"content", "", "role", "assistant"}
	case c.role:
		return object{"role", "assistant", "content", ""}
	case c.text == "":
		return object{}
	}
	return object{"content", c.text}
}
