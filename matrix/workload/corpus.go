package workload

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// Tokenizer says who counted the tokens of a corpus.
type Tokenizer struct {
	Name        string `json:"name"`                  // llamacpp /tokenize, tokenizer.json …
	Fingerprint string `json:"fingerprint,omitempty"` // sha256 of the tokenizer's file, or of the artifact it belongs to
}

// Spec is what a corpus is made for. Every scored block, lead-in and repetition has prompts of its own, shared by all
// arms of the block.
type Spec struct {
	Seed        uint64    `json:"seed,string"`
	Superblocks int       `json:"superblocks"` // that have prompts, those in reserve for extension and re-runs included
	Repetitions int       `json:"repetitions"`
	Parts       []Part    `json:"parts"`
	Tokenizer   Tokenizer `json:"tokenizer,omitzero"` // zero: nobody counts
	KeepIDs     bool      `json:"keep_ids,omitempty"` // keep token ids, for servers that are asked by ids
}

// Part is what one point needs of a corpus.
type Part struct {
	Point        string `json:"point"`
	PromptTokens int    `json:"prompt_tokens"`
	SharedPrefix int    `json:"shared_prefix,omitempty"`
	Requests     int    `json:"requests"` // per repetition
	Warmup       int    `json:"warmup"`   // per load
}

// SpecOf is the spec for points that are run with R repetitions in so many superblocks.
func SpecOf(points []matrix.Point, repetitions, superblocks int, seed uint64, by Tokenizer) Spec {
	s := Spec{Seed: seed, Superblocks: superblocks, Repetitions: repetitions, Tokenizer: by}
	for _, p := range points {
		s.Parts = append(s.Parts, Part{Point: p.ID, PromptTokens: p.PromptTokens, SharedPrefix: p.SharedPrefix, Requests: p.Requests, Warmup: p.Warmup})
	}
	return s
}

// Reserve is how many superblocks a plan of so many may come to: extension up to 12 blocks from 6 on (protocol §3.7), and
// re-runs of half of them for environment voids (§4.4).
func Reserve(planned int) int {
	most := planned
	if planned >= 3 {
		most = max(planned, 6)
	}
	return most + (most+1)/2
}

// Key names the corpus that Build makes of a spec, before it is made: the name to cache it under.
func (s Spec) Key() (string, error) {
	return matrix.Digest(struct {
		Words int
		Spec  Spec
	}{wordsVersion, s})
}

func (s Spec) validate() error {
	if s.Superblocks < 1 || s.Repetitions < 1 || len(s.Parts) == 0 {
		return fmt.Errorf("corpus: %d superblocks, %d repetitions, %d points; each must be at least 1", s.Superblocks, s.Repetitions, len(s.Parts))
	}
	seen := map[string]bool{}
	for _, p := range s.Parts {
		switch {
		case p.Point == "" || strings.ContainsRune(p.Point, '/'):
			return fmt.Errorf("corpus: point %q: a name without / is needed", p.Point)
		case seen[p.Point]:
			return fmt.Errorf("corpus: point %s is listed twice", p.Point)
		case p.PromptTokens < 1 || p.Requests < 1 || p.Warmup < 0:
			return fmt.Errorf("corpus: point %s asks for %d prompts of %d tokens and %d to warm up", p.Point, p.Requests, p.PromptTokens, p.Warmup)
		case p.SharedPrefix < 0 || p.SharedPrefix >= p.PromptTokens:
			return fmt.Errorf("corpus: point %s shares %d of %d tokens", p.Point, p.SharedPrefix, p.PromptTokens)
		}
		seen[p.Point] = true
	}
	return nil
}

// Prompt is one prompt of a corpus.
type Prompt struct {
	ID     string          `json:"id"` // point/partition/number
	Text   string          `json:"text"`
	Tokens matrix.Opt[int] `json:"tokens,omitzero"` // exact; absent where nobody counted
	IDs    []int           `json:"ids,omitempty"`   // where the spec keeps them
}

// Corpus is the prompts of a run. It is read-only once built. One that was built through a tokenizer or Read holds all its
// texts; one without counts draws them again when they are taken, and one that was Opened reads them from its file, so
// that a running measurement does not carry some 6 KB for each of thousands of prompts.
type Corpus struct {
	Manifest Manifest
	sizes    map[string]int                     // point/partition → prompts
	prompts  func(key string) ([]Prompt, error) // of a partition that sizes has
}

// Manifest is what a corpus says of itself, the first line of its file.
type Manifest struct {
	Schema  int    `json:"schema"`
	Words   int    `json:"words"` // version of the word material
	Spec    Spec   `json:"spec"`
	Exact   bool   `json:"exact"` // every prompt has exactly the tokens of its point
	Note    string `json:"note,omitempty"`
	Prompts int    `json:"prompts"`
	SHA256  string `json:"sha256"` // of the rest of the manifest and all prompt lines
}

const (
	schema  = 1
	noCount = "no tokenizer: prompt lengths are approximate and recorded as absent"
)

// WarmUp is the repetition of the untimed requests of a load, which have prompts of their own.
const WarmUp = -1

// LeadIn is the block number of a superblock's lead-in load, which shares prompts with no scored block.
func LeadIn(superblock int) int { return -1 - superblock }

// partition names the prompts of one repetition: b3r1 (block 3, repetition 1), b3w (its warm-up), s1r0 (lead-in of superblock 1).
func partition(block, rep int) string {
	s := "b" + strconv.Itoa(block)
	if block < 0 {
		s = "s" + strconv.Itoa(LeadIn(block))
	}
	if rep == WarmUp {
		return s + "w"
	}
	return s + "r" + strconv.Itoa(rep)
}

// slots calls yield for every partition of a spec, in the order of its file.
func (s Spec) slots(yield func(p Part, partition string, prompts int) error) error {
	for _, p := range s.Parts {
		for sb := range s.Superblocks {
			for _, block := range []int{LeadIn(sb), 2 * sb, 2*sb + 1} {
				reps := s.Repetitions
				if block < 0 {
					reps = 1 // a lead-in has one repetition (protocol §1)
				}
				for rep := WarmUp; rep < reps; rep++ {
					n := p.Requests
					if rep == WarmUp {
						n = p.Warmup
					}
					if err := yield(p, partition(block, rep), n); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// Build makes a corpus. Every prompt has exactly the tokens of its point by tokenize, which returns the ids that a server
// would see for a text; no two prompts are alike. Equal spec and tokenizer give equal bytes, and more superblocks leave the
// prompts of the first ones as they were.
//
// Without a tokenizer (nil) prompts have about the right length, no token counts, and the manifest says so.
func Build(spec Spec, tokenize func(text string) ([]int, error)) (*Corpus, error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	c := &Corpus{sizes: map[string]int{}, Manifest: Manifest{Schema: schema, Words: wordsVersion, Spec: spec, Exact: tokenize != nil}}
	m := maker{seed: spec.Seed, seen: map[digest]bool{}, heads: map[string]head{}, keep: spec.KeepIDs}
	if tokenize == nil {
		if spec.Tokenizer != (Tokenizer{}) {
			return nil, fmt.Errorf("corpus: the spec names tokenizer %s and none is given", spec.Tokenizer.Name)
		}
		c.Manifest.Note = noCount
	} else {
		var err error
		if m.bank, err = measure(tokenize); err != nil {
			return nil, err
		}
	}
	made, drawn := map[string][]Prompt{}, map[string]int{}
	err := spec.slots(func(p Part, partition string, n int) error {
		key := p.Point + "/" + partition
		for i := range n {
			prompt, attempt, err := m.prompt(p, key+"/"+strconv.Itoa(i))
			if err != nil {
				return fmt.Errorf("point %s: %w", p.Point, err)
			}
			if tokenize != nil {
				made[key] = append(made[key], prompt)
			} else if attempt > 0 {
				drawn[prompt.ID] = attempt
			}
		}
		c.sizes[key] = n
		c.Manifest.Prompts += n
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.seen = nil
	c.prompts = func(key string) ([]Prompt, error) { return made[key], nil }
	if tokenize == nil {
		c.prompts = func(key string) ([]Prompt, error) { return m.again(c.part(key), key, c.sizes[key], drawn) }
	}
	c.Manifest.SHA256, err = c.sum()
	return c, err
}

// part is the part of the spec that a partition belongs to.
func (c *Corpus) part(key string) Part {
	point, _, _ := strings.Cut(key, "/")
	for _, p := range c.Manifest.Spec.Parts {
		if p.Point == point {
			return p
		}
	}
	return Part{}
}

// maker draws prompts that are all different.
type maker struct {
	seed  uint64
	bank  *bank // nil: nobody counts
	seen  map[digest]bool
	heads map[string]head
	keep  bool
}

// digest stands for a text among thousands of others.
type digest [sha256.Size]byte

// head is what the prompts of a shared-prefix point have in common.
type head struct {
	text string
	ids  []int
}

// generator is the source of one prompt: its own, so that no prompt depends on how many were drawn before it.
func (m *maker) generator(id string, attempt int) *stats.SplitMix64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s/%d", m.seed, id, attempt))
	return stats.NewSplitMix64(binary.LittleEndian.Uint64(sum[:]))
}

// prompt draws a prompt that is like none before, and says at which attempt.
func (m *maker) prompt(p Part, id string) (Prompt, int, error) {
	for attempt := range tries {
		x, err := m.attempt(p, id, attempt)
		if err != nil {
			return Prompt{}, 0, err
		}
		if d := digest(sha256.Sum256([]byte(x.Text))); !m.seen[d] {
			m.seen[d] = true
			return x, attempt, nil
		}
	}
	return Prompt{}, 0, fmt.Errorf("corpus: prompts of %d tokens with %d shared run out of different texts: every prompt of a cold workload must be new", p.PromptTokens, p.SharedPrefix)
}

func (m *maker) attempt(p Part, id string, attempt int) (Prompt, error) {
	h, err := m.head(p)
	if err != nil {
		return Prompt{}, err
	}
	text, ids, err := m.text(p.PromptTokens, p.SharedPrefix, h, m.generator(id, attempt))
	if err != nil {
		return Prompt{}, err
	}
	x := Prompt{ID: id, Text: text}
	if m.bank != nil {
		x.Tokens = matrix.Some(len(ids))
	}
	if m.keep {
		x.IDs = ids
	}
	return x, nil
}

// again draws a partition as it was drawn at first.
func (m *maker) again(p Part, key string, n int, attempts map[string]int) ([]Prompt, error) {
	out := make([]Prompt, n)
	for i := range out {
		id := key + "/" + strconv.Itoa(i)
		var err error
		if out[i], err = m.attempt(p, id, attempts[id]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *maker) head(p Part) (head, error) {
	if h, ok := m.heads[p.Point]; ok || p.SharedPrefix == 0 {
		return h, nil
	}
	text, ids, err := m.text(p.SharedPrefix, 0, head{}, m.generator(p.Point+"/prefix", 0))
	m.heads[p.Point] = head{text, ids}
	return m.heads[p.Point], err
}

func (m *maker) text(tokens, shared int, h head, rng *stats.SplitMix64) (string, []int, error) {
	if m.bank != nil {
		return m.bank.exact(tokens, h.text, h.ids, rng)
	}
	units := make([]unit, tokens-shared) // most words are one token in most tokenizers
	for i := range units {
		units[i].text = words[rng.UintN(uint64(len(words)))]
	}
	return join(h.text, units), nil, nil
}

// Identity is what stands for the corpus in a method: its hash, or that its prompts were never counted, with the hash.
func (c *Corpus) Identity() string {
	if c.Manifest.Exact {
		return c.Manifest.SHA256
	}
	return "none: text prompts, sha256 " + c.Manifest.SHA256
}

// ErrExhausted says that a corpus has no prompts for what is asked; it is never answered with prompts used before.
var ErrExhausted = errors.New("the corpus has no such prompts")

// Take returns the first n prompts of one repetition (or WarmUp) of a point in a block (or LeadIn). Arms of one block take
// the same prompts, and no other repetition or block gets them.
func (c *Corpus) Take(block int, point string, rep, n int) ([]Prompt, error) {
	key := point + "/" + partition(block, rep)
	have, ok := c.sizes[key]
	if !ok {
		return nil, fmt.Errorf("%w: point %s, %s; it was built for %d superblocks and %d repetitions: build it for more", ErrExhausted, point,
			partition(block, rep), c.Manifest.Spec.Superblocks, c.Manifest.Spec.Repetitions)
	}
	if n < 0 || n > have {
		return nil, fmt.Errorf("%w: point %s, %s has %d prompts, %d are asked for: build it for these points", ErrExhausted, point, partition(block, rep), have, n)
	}
	prompts, err := c.prompts(key)
	if err != nil {
		return nil, err
	}
	return prompts[:n:n], nil
}

// Fits reports why a corpus cannot serve points run with R repetitions in so many superblocks.
func (c *Corpus) Fits(points []matrix.Point, repetitions, superblocks int) error {
	have := map[string]Part{}
	for _, p := range c.Manifest.Spec.Parts {
		have[p.Point] = p
	}
	for _, p := range points {
		h, ok := have[p.ID]
		switch {
		case !ok:
			return fmt.Errorf("corpus: it has no prompts for point %s; build it for this workload", p.ID)
		case h.PromptTokens != p.PromptTokens || h.SharedPrefix != p.SharedPrefix:
			return fmt.Errorf("corpus: point %s needs prompts of %d tokens with %d shared, it has %d with %d", p.ID, p.PromptTokens, p.SharedPrefix, h.PromptTokens, h.SharedPrefix)
		case h.Requests < p.Requests || h.Warmup < p.Warmup:
			return fmt.Errorf("corpus: point %s needs %d prompts and %d to warm up, it has %d and %d", p.ID, p.Requests, p.Warmup, h.Requests, h.Warmup)
		}
	}
	if s := c.Manifest.Spec; s.Repetitions < repetitions || s.Superblocks < superblocks {
		return fmt.Errorf("corpus: %d repetitions in %d superblocks are asked for, it has prompts for %d in %d", repetitions, superblocks, s.Repetitions, s.Superblocks)
	}
	return nil
}
