package workload

import (
	"fmt"
	"slices"
	"strings"

	"enginebroker/matrix/stats"
)

// bank is the word material with the number of tokens that a tokenizer was seen to give each word between two others.
type bank struct {
	tokenize func(string) ([]int, error)
	words    []unit
	all      []unit // words and fillers
	fixed    int    // tokens of a text beside its words: what the tokenizer adds
	fits     []bool // fits[n]: some sum of units is n
}

type unit struct {
	text string
	cost int
}

// frame stands on both sides of a word that is measured.
const frame = "one"

// measure asks the tokenizer about every word once.
func measure(tokenize func(string) ([]int, error)) (*bank, error) {
	b := &bank{tokenize: tokenize}
	count := func(parts ...string) (int, error) {
		ids, err := tokenize(strings.Join(parts, " "))
		if err != nil {
			return 0, fmt.Errorf("corpus: the tokenizer failed on %q: %w", parts, err)
		}
		return len(ids), nil
	}
	two, err := count(frame, frame)
	if err != nil {
		return nil, err
	}
	three, err := count(frame, frame, frame)
	if err != nil {
		return nil, err
	}
	b.fixed = two - 2*(three-two)
	for i, w := range slices.Concat(words, fillers) {
		n, err := count(frame, w, frame)
		if err != nil {
			return nil, err
		}
		if n <= two {
			continue // swallowed by its neighbours: of no use for counting
		}
		b.all = append(b.all, unit{w, n - two})
		if i < len(words) {
			b.words = append(b.words, b.all[len(b.all)-1])
		}
	}
	if len(b.words) == 0 {
		return nil, fmt.Errorf("corpus: the tokenizer gives %d tokens to two words and never more to three: it does not count", two)
	}
	most := slices.MaxFunc(b.all, func(x, y unit) int { return x.cost - y.cost }).cost
	b.fits = make([]bool, 4*most+1)
	b.fits[0] = true
	for n := range b.fits {
		b.fits[n] = b.fits[n] || slices.ContainsFunc(b.all, func(u unit) bool { return u.cost <= n && b.fits[n-u.cost] })
	}
	return b, nil
}

// reachable reports whether units can make up exactly n tokens; beyond the table they always can if its end is full.
func (b *bank) reachable(n int) bool { return n >= 0 && (n >= len(b.fits) || b.fits[n]) }

// fill draws units that are expected to make up exactly n tokens, as many of them words as possible.
func (b *bank) fill(n int, rng *stats.SplitMix64) []unit {
	var out []unit
	for n > 0 {
		u, ok := b.draw(n, b.words, rng)
		if !ok {
			if u, ok = b.draw(n, b.all, rng); !ok {
				return out
			}
		}
		out, n = append(out, u), n-u.cost
	}
	return out
}

func (b *bank) draw(n int, from []unit, rng *stats.SplitMix64) (unit, bool) {
	for start, i := rng.UintN(uint64(len(from))), uint64(0); i < uint64(len(from)); i++ {
		if u := from[(start+i)%uint64(len(from))]; u.cost <= n && b.reachable(n-u.cost) {
			return u, true
		}
	}
	return unit{}, false
}

// tries bounds how often one prompt is corrected, and how often it is drawn anew.
const tries = 16

// exact makes a text of exactly n tokens that starts with head, and returns its ids. The tokenizer has the last word:
// what the sums of words predict is corrected until it agrees.
func (b *bank) exact(n int, head string, headIDs []int, rng *stats.SplitMix64) (string, []int, error) {
	nearest := -1
	for range tries {
		want := n - b.fixed
		if head != "" {
			want = n - len(headIDs)
		}
		picked := b.fill(want, rng)
		for range tries {
			text := join(head, picked)
			if text == "" {
				break
			}
			ids, err := b.tokenize(text)
			if err != nil {
				return "", nil, fmt.Errorf("corpus: the tokenizer failed on a prompt of %d bytes: %w", len(text), err)
			}
			off := n - len(ids)
			if off == 0 && startsWith(ids, headIDs) {
				return text, ids, nil
			}
			if off == 0 {
				break
			}
			if nearest < 0 || abs(off) < abs(n-nearest) {
				nearest = len(ids)
			}
			for ; off < 0 && len(picked) > 0; picked = picked[:len(picked)-1] {
				off += picked[len(picked)-1].cost
			}
			picked = append(picked, b.fill(off, rng)...)
		}
	}
	if nearest < 0 {
		return "", nil, fmt.Errorf("corpus: a prompt of %d tokens has no room for text: this tokenizer alone adds %d", n, b.fixed)
	}
	return "", nil, fmt.Errorf("corpus: no text of exactly %d tokens was found with this tokenizer (nearest %d)", n, nearest)
}

// startsWith reports whether a prompt keeps its shared head as the same tokens: else the head would not be shared.
func startsWith(ids, head []int) bool {
	return len(ids) >= len(head) && slices.Equal(ids[:len(head)], head)
}

func join(head string, units []unit) string {
	var s strings.Builder
	s.WriteString(head)
	for _, u := range units {
		if s.Len() > 0 {
			s.WriteByte(' ')
		}
		s.WriteString(u.text)
	}
	return s.String()
}

func abs(n int) int { return max(n, -n) }
