package matrix

// Imported is what another client says about one benchmark, in a type of its own: nothing divides by it.
type Imported struct {
	Mark         string           `json:"mark"` // EXTERNAL
	Tool         string           `json:"tool"`
	Version      Opt[string]      `json:"version,omitzero"` // of the tool, where the file says
	Formula      string           `json:"formula"`          // under which its numbers were computed
	Model        string           `json:"model,omitempty"`
	Concurrency  Opt[int64]       `json:"concurrency,omitzero"`
	Planned      Opt[int64]       `json:"planned,omitzero"` // requests asked for
	OK           Opt[int64]       `json:"ok,omitzero"`      // as the tool counts
	Failed       Opt[int64]       `json:"failed,omitzero"`
	Incomplete   Opt[int64]       `json:"incomplete,omitzero"`
	Seconds      Opt[float64]     `json:"seconds,omitzero"` // length of the benchmark
	PromptTokens Opt[int64]       `json:"prompt_tokens,omitzero"`
	OutputTokens Opt[int64]       `json:"output_tokens,omitzero"`
	Numbers      []ImportedNumber `json:"numbers"`
	Missing      []string         `json:"missing,omitempty"` // fields a result of this tool has and this file has not
	Warnings     []string         `json:"warnings,omitempty"`
	File         string           `json:"file,omitempty"` // it was read from, in the run's folder
}

// ImportedNumber is one figure of a tool under the name our reports use for it, in ms or per second.
type ImportedNumber struct {
	Name  string  `json:"name"`
	Field string  `json:"field"` // in the file
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
}
