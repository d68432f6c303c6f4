package workload

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
)

// Write writes a corpus as JSON lines: the manifest, then its prompts in the order of the spec. Equal corpora give equal bytes.
func (c *Corpus) Write(w io.Writer) error {
	buf := bufio.NewWriterSize(w, 1<<16)
	line, err := json.Marshal(c.Manifest)
	if err != nil {
		return err
	}
	_, _ = buf.Write(append(line, '\n')) // a bufio.Writer keeps its first error for Flush
	if err := c.lines(buf); err != nil {
		return err
	}
	return buf.Flush()
}

func (c *Corpus) lines(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return c.Manifest.Spec.slots(func(p Part, partition string, _ int) error {
		prompts, err := c.prompts(p.Point + "/" + partition)
		if err != nil {
			return err
		}
		for _, prompt := range prompts {
			if err := enc.Encode(prompt); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Corpus) sum() (string, error) {
	h, err := c.Manifest.hash()
	if err != nil {
		return "", err
	}
	if err := c.lines(h); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hash starts the sum of a corpus with what its manifest says.
func (m Manifest) hash() (hash.Hash, error) {
	m.SHA256 = ""
	h := sha256.New()
	return h, json.NewEncoder(h).Encode(m)
}

// maxLine bounds one line of a corpus file: a prompt of a million tokens with its ids stays below it.
const maxLine = 16 << 20

// Open reads a corpus file and believes nothing in it: the hash, the number of prompts, the order and name of each, its
// token count, and that no two are alike. An error names the line. The file stays open: prompts are read from it when they
// are taken, so that the corpus takes memory by the partition, not by the prompt. A partition that changed since is an error,
// never other prompts.
func Open(r io.ReaderAt, size int64) (*Corpus, error) {
	type span struct {
		at, bytes int64
		sum       digest
	}
	spans := map[string]span{}
	var open span
	sum := sha256.New()
	c, err := scan(io.NewSectionReader(r, 0, size), func(key string, _ Prompt, line []byte, at int64) {
		if _, ok := spans[key]; !ok {
			open = span{at: at}
			sum.Reset()
		}
		sum.Write(line)
		sum.Write(newline)
		open.bytes += int64(len(line) + len(newline))
		open.sum = digest(sum.Sum(nil))
		spans[key] = open
	})
	if err != nil {
		return nil, err
	}
	c.prompts = func(key string) ([]Prompt, error) {
		s := spans[key]
		data := make([]byte, s.bytes)
		if _, err := r.ReadAt(data, s.at); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("corpus: partition %s at byte %d: %w", key, s.at, err)
		}
		if sha256.Sum256(data) != s.sum && c.sizes[key] > 0 {
			return nil, fmt.Errorf("corpus: partition %s at byte %d is no longer what was opened: the file changed", key, s.at)
		}
		out := make([]Prompt, c.sizes[key])
		dec := json.NewDecoder(bytes.NewReader(data))
		for i := range out {
			if err := dec.Decode(&out[i]); err != nil {
				return nil, fmt.Errorf("corpus: partition %s: %w", key, err)
			}
		}
		return out, nil
	}
	return c, nil
}

var newline = []byte{'\n'}

// scan checks a corpus file and hands on each prompt with its line, which is good for the call only, and where it starts.
func scan(r io.Reader, keep func(key string, x Prompt, line []byte, at int64)) (*Corpus, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	line, at, end := 0, int64(0), int64(0)
	in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n := bytes.IndexByte(data, '\n')
		if n < 0 { // a last line without its end is torn
			return 0, nil, nil
		}
		at, end = end, end+int64(n)+1
		return n + 1, data[:n], nil
	})
	c := &Corpus{sizes: map[string]int{}}
	next := func(v any) error {
		if !in.Scan() {
			return fmt.Errorf("corpus: line %d: %w", line+1, errors.Join(in.Err(), io.ErrUnexpectedEOF))
		}
		line++
		dec := json.NewDecoder(bytes.NewReader(in.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			return fmt.Errorf("corpus: line %d: %w", line, err)
		}
		return nil
	}
	if err := next(&c.Manifest); err != nil {
		return nil, err
	}
	m := c.Manifest
	if m.Schema != schema || m.Words < 1 {
		return nil, fmt.Errorf("corpus: line 1: schema %d of words %d; this program reads schema %d: build the corpus anew", m.Schema, m.Words, schema)
	}
	if err := m.Spec.validate(); err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	body, err := m.hash()
	if err != nil {
		return nil, err
	}
	seen, total := map[digest]int{}, 0
	err = m.Spec.slots(func(p Part, partition string, n int) error {
		key := p.Point + "/" + partition
		for i := range n {
			var x Prompt
			if err := next(&x); err != nil {
				return err
			}
			body.Write(in.Bytes())
			body.Write(newline)
			if err := check(x, key+"/"+strconv.Itoa(i), p, m); err != nil {
				return fmt.Errorf("corpus: line %d: %w", line, err)
			}
			d := digest(sha256.Sum256([]byte(x.Text)))
			if first, dup := seen[d]; dup {
				return fmt.Errorf("corpus: line %d: the prompt of line %d again: a cold workload asks nothing twice", line, first)
			}
			seen[d] = line
			keep(key, x, in.Bytes(), at)
			total++
		}
		c.sizes[key] = n
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case in.Scan():
		return nil, fmt.Errorf("corpus: line %d: more than the %d prompts of its spec", line+1, total)
	case in.Err() != nil:
		return nil, fmt.Errorf("corpus: line %d: %w", line+1, in.Err())
	case total != m.Prompts:
		return nil, fmt.Errorf("corpus: line 1: prompts is %d, the spec makes %d", m.Prompts, total)
	}
	if got := hex.EncodeToString(body.Sum(nil)); got != m.SHA256 {
		return nil, fmt.Errorf("corpus: the prompts hash to %s, the manifest says %s: the file was edited or cut", got, m.SHA256)
	}
	return c, nil
}

func check(x Prompt, id string, p Part, m Manifest) error {
	n, counted := x.Tokens.Get()
	switch {
	case x.ID != id:
		return fmt.Errorf("id: %q where %s belongs", x.ID, id)
	case x.Text == "":
		return fmt.Errorf("text: prompt %s is empty", id)
	case counted != m.Exact:
		return fmt.Errorf("tokens: counted is %t for prompt %s, the manifest says %t", counted, id, m.Exact)
	case counted && n != p.PromptTokens:
		return fmt.Errorf("tokens: prompt %s has %d, its point asks for exactly %d", id, n, p.PromptTokens)
	case counted && m.Spec.KeepIDs && len(x.IDs) != n:
		return fmt.Errorf("ids: prompt %s has %d for %d tokens", id, len(x.IDs), n)
	}
	return nil
}
