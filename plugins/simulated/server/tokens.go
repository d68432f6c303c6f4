package server

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// Tokens of the simulated model, the same in every dialect: a word with the space before it is one token, every other byte
// is one. Ids of bytes are their values, ids of words a hash.
func Tokenize(s string) []int {
	ids := []int{}
	for i := 0; i < len(s); {
		j := i
		if s[j] == ' ' {
			j++
		}
		k := j
		for k < len(s) && letter(s[k]) {
			k++
		}
		if k == j { // no word here: one byte
			ids = append(ids, int(s[i]))
			i++
			continue
		}
		ids = append(ids, wordID(s[i:k]))
		i = k
	}
	return ids
}

func letter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' }

const firstWord, words = 256, 49744

func wordID(w string) int {
	h := fnv.New32a()
	h.Write([]byte(w))
	return firstWord + int(h.Sum32()%words)
}

var vocabulary = strings.Fields("the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what all " +
	"were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make " +
	"like him into time has look two more write go see number no way could people")

// piece is one token of an answer.
type piece struct {
	text string
	id   int
}

// answer generates greedily: the same prompt gives the same tokens in every dialect and load.
type answer struct {
	rng  *rand.Rand
	head []string
}

var product = regexp.MustCompile(`(\d{1,6})\s*[x×*]\s*(\d{1,6})`)

func newAnswer(prompt []int, text string, wrong bool, nonce uint64) *answer {
	h := fnv.New64a()
	for _, id := range prompt {
		fmt.Fprintf(h, "%d,", id)
	}
	seed := h.Sum64()
	if wrong {
		seed += nonce
	}
	a := &answer{rng: rand.New(rand.NewPCG(seed, 1))}
	// A model that understood its weights multiplies (the canary of protocol §4.1).
	if all := product.FindAllStringSubmatch(text, -1); len(all) > 0 {
		m := all[len(all)-1]
		x, _ := strconv.Atoi(m[1])
		y, _ := strconv.Atoi(m[2])
		if wrong {
			y++
		}
		a.head = []string{" " + strconv.Itoa(x*y)}
	}
	return a
}

func (a *answer) next() piece {
	w := " " + vocabulary[a.rng.IntN(len(vocabulary))]
	if len(a.head) > 0 {
		w, a.head = a.head[0], a.head[1:]
	}
	return piece{w, wordID(w)}
}
