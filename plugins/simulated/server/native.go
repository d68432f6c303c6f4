package server

import "slices"

// The native forms: llama-server's /completion and SGLang's /generate.

// nativeChunk is one event of a native stream. llama-server sends deltas, SGLang everything so far.
func (s *Server) nativeChunk(r *request, c content) object {
	if s.p.Dialect == "llamacpp" {
		return object{"index", 0, "content", c.text, "tokens", c.ids, "stop", false, "id_slot", -1,
			"tokens_predicted", r.produced, "tokens_evaluated", r.promptTokens}
	}
	r.out.WriteString(c.text)
	r.outIDs = append(r.outIDs, c.ids...)
	return object{"text", r.out.String(), "output_ids", slices.Clone(r.outIDs), "meta_info", r.meta(c)}
}

// nativeEnd is llama-server's last event; there is no [DONE].
func (s *Server) nativeEnd(r *request) object {
	return object{"index", 0, "content", "", "tokens", []int{}, "id_slot", 0, "stop", true, "model", r.model,
		"tokens_predicted", r.produced, "tokens_evaluated", r.promptTokens,
		"generation_settings", object{"temperature", 0, "n_predict", r.tokens, "speculative.types", "none"},
		"prompt", r.text, "has_new_line", false, "truncated", false, "stop_type", "limit", "stopping_word", "",
		"tokens_cached", r.promptTokens + r.produced, "timings", r.timings(), "system_fingerprint", r.fingerprint}
}

func (s *Server) nativeAnswer(r *request, c content) object {
	if s.p.Dialect == "llamacpp" {
		end := s.nativeEnd(r)
		end[3], end[5] = c.text, c.ids
		return end
	}
	return object{"text", c.text, "output_ids", c.ids, "meta_info", r.meta(c)}
}

// meta is SGLang's meta_info.
func (r *request) meta(c content) object {
	var finish any
	if c.finish != "" {
		finish = object{"type", c.finish, "length", r.tokens}
	}
	o := object{"id", r.id, "finish_reason", finish, "prompt_tokens", r.promptTokens, "weight_version", "default", "num_retractions", 0,
		"reasoning_tokens", 0, "completion_tokens", r.produced, "cached_tokens", r.cached, "cached_tokens_details", nil, "dp_rank", nil,
		"system_fingerprint", r.fingerprint}
	if c.finish != "" {
		o = append(o, "e2e_latency", (r.due - r.start).Seconds())
	}
	return o
}
