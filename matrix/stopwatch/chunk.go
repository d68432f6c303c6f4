package stopwatch

import "enginebroker/matrix"

// chunk is what one JSON event says. Its slices alias the event's bytes and are valid as long as they are.
type chunk struct {
	choices     []choice
	arguments   []arguments
	hasChoices  bool // a non-empty choices array
	usage       []byte
	counts      usage // of usage, or of a native form's own fields
	model       text
	fingerprint text
	failure     []byte // the error: an object or a string, else the whole event
	flat        bool   // the event itself is the error: object is "error", or the error member tells no more than that there is one

	// Forms that are not OpenAI's.
	stop     bool // llama.cpp: the final event
	stopType text
	content  text // llama.cpp content, SGLang text
	ids      matrix.Opt[int64]
	metaEnd  text // SGLang finish_reason.type
	metaRaw  []byte
	hasMeta  bool

	predicted matrix.Opt[int64] // timings.predicted_n or tokens_predicted
	evaluated matrix.Opt[int64] // tokens_evaluated
	cacheN    matrix.Opt[int64] // timings.cache_n
}

// usage is the token counts of one usage object.
type usage struct {
	prompt, completion, cached, reasoning matrix.Opt[int64]
}

// choice is one element of choices: a delta of chat, or a text of completions.
type choice struct {
	index     int64
	content   text
	reasoning text
	role      bool
	tool      bool // a tool call's name or arguments came
	finish    text
	ids       matrix.Opt[int64]
}

// arguments are a piece of a tool call's arguments, by the position of its choice in the event.
type arguments struct {
	choice int
	text   text
}

// parse reads one event. It reports false where the event is no JSON. c keeps its storage between events.
func (c *chunk) parse(s *scanner, event []byte) bool {
	*c = chunk{choices: c.choices[:0], arguments: c.arguments[:0]}
	s.reset(event)
	for open := s.open('{'); open && s.member(); { // null and other scalars are legal and say nothing
		switch string(s.name) {
		case "choices":
			c.parseChoices(s)
		case "usage":
			c.parseUsage(s)
		case "model":
			c.model = s.text()
		case "system_fingerprint":
			c.fingerprint = s.text()
		case "error":
			c.parseError(s)
		case "object":
			t := s.text()
			c.flat = c.flat || string(t.raw) == "error"
		case "timings":
			c.parseTimings(s)
		case "content", "text":
			c.content = s.text()
		case "tokens", "output_ids":
			c.ids = s.count()
		case "stop":
			c.stop = s.truth()
		case "stop_type":
			c.stopType = s.text()
		case "tokens_predicted":
			c.predicted = s.amount()
		case "tokens_evaluated":
			c.evaluated = s.amount()
		case "meta_info":
			c.parseMeta(s)
		default:
			s.skip()
		}
	}
	if c.flat && c.failure == nil {
		c.failure = event
	}
	return s.end()
}

// parseError takes an error of any kind; null and false are none.
func (c *chunk) parseError(s *scanner) {
	switch s.peek() {
	case '{', '"':
		c.failure = s.skip()
	case 'n', 'f':
		s.skip()
	default:
		s.skip()
		c.flat = true
	}
}

func (c *chunk) parseChoices(s *scanner) {
	c.choices, c.arguments, c.hasChoices = c.choices[:0], c.arguments[:0], false // of a repeated key the last one counts
	for open := s.open('['); open && s.element(); {
		c.hasChoices = true
		if s.peek() != '{' {
			s.skip()
			continue
		}
		c.choices = append(c.choices, choice{})
		c.parseChoice(s, &c.choices[len(c.choices)-1])
	}
}

func (c *chunk) parseChoice(s *scanner, x *choice) {
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "index":
			x.index = s.integer().Or(0)
		case "text":
			x.content = s.text()
		case "delta":
			c.parseDelta(s, x)
		case "finish_reason":
			x.finish = s.text()
		case "token_ids":
			x.ids = s.count()
		case "error":
			c.parseError(s)
		default:
			s.skip()
		}
	}
}

func (c *chunk) parseDelta(s *scanner, x *choice) {
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "content":
			x.content = s.text()
		case "reasoning_content", "reasoning": // the older and the newer name; a server that sends both sends the same text
			if t := s.text(); x.reasoning.empty() {
				x.reasoning = t
			}
		case "role":
			x.role = s.text().set
		case "tool_calls":
			c.parseTools(s, x)
		default:
			s.skip()
		}
	}
}

func (c *chunk) parseTools(s *scanner, x *choice) {
	for open := s.open('['); open && s.element(); {
		for open := s.open('{'); open && s.member(); {
			if string(s.name) == "function" {
				c.parseFunction(s, x)
			} else {
				s.skip()
			}
		}
	}
}

func (c *chunk) parseFunction(s *scanner, x *choice) {
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "name":
			if !s.text().empty() {
				x.tool = true
			}
		case "arguments":
			if t := s.text(); !t.empty() {
				x.tool = true
				c.arguments = append(c.arguments, arguments{len(c.choices) - 1, t})
			}
		default:
			s.skip()
		}
	}
}

func (c *chunk) parseUsage(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	start := s.i
	u := usage{}
	u.parse(s)
	if !s.bad {
		c.usage, c.counts = s.b[start:s.i], u
	}
}

func (u *usage) parse(s *scanner) {
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "prompt_tokens":
			u.prompt = s.amount()
		case "completion_tokens":
			u.completion = s.amount()
		case "reasoning_tokens": // SGLang keeps it at the top of usage
			u.reasoning = s.amount()
		case "prompt_tokens_details":
			u.cached = detail(s, "cached_tokens", u.cached)
		case "completion_tokens_details":
			u.reasoning = detail(s, "reasoning_tokens", u.reasoning)
		default:
			s.skip()
		}
	}
}

// detail reads one integer member of an object; null and other types leave what was known.
func detail(s *scanner, name string, known matrix.Opt[int64]) matrix.Opt[int64] {
	for open := s.open('{'); open && s.member(); {
		if string(s.name) != name {
			s.skip()
		} else if n := s.amount(); n.Present() {
			known = n
		}
	}
	return known
}

func (c *chunk) parseTimings(s *scanner) {
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "predicted_n":
			if n := s.amount(); !c.predicted.Present() {
				c.predicted = n
			}
		case "cache_n":
			c.cacheN = s.amount()
		default:
			s.skip()
		}
	}
}

// parseMeta reads SGLang's meta_info: the counts of a usage object, and the end of the stream.
func (c *chunk) parseMeta(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	c.hasMeta = true
	for open := s.open('{'); open && s.member(); {
		switch string(s.name) {
		case "prompt_tokens":
			c.counts.prompt = s.amount()
		case "completion_tokens":
			c.counts.completion = s.amount()
		case "cached_tokens":
			c.counts.cached = s.amount()
		case "reasoning_tokens":
			c.counts.reasoning = s.amount()
		case "finish_reason":
			s.peek()
			start := s.i
			c.metaEnd = finishType(s)
			c.metaRaw = s.b[start:s.i]
		default:
			s.skip()
		}
	}
}

// finishType reads a finish reason that is null, a string or an object with a type.
func finishType(s *scanner) (t text) {
	if s.peek() != '{' {
		return s.text()
	}
	for open := s.open('{'); open && s.member(); {
		if string(s.name) == "type" {
			t = s.text()
		} else {
			s.skip()
		}
	}
	return t
}
