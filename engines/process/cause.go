package process

import "regexp"

// Cause is one line of an adapter's table of root causes: a log line that explains a failed start.
type Cause struct {
	Pattern *regexp.Regexp
	Code    string // code of matrix.StartFailure, empty: keep the observed one
	Fix     string
}

// TailLines is how much of a log is searched for a root cause: the cause is often far above the last line.
const TailLines = 400

// maxCauseLines bounds what a failure quotes.
const maxCauseLines = 5

// RootCause searches lines for the first pattern of the table that matches anything; tables are ordered by how much a
// line explains, so that a general "see above" never hides the line above. It returns that row and its matching lines,
// earliest first. Without a match the last lines are returned with an empty row.
func RootCause(lines []string, table []Cause) (Cause, []string) {
	for _, c := range table {
		var found []string
		for _, l := range lines {
			if c.Pattern.MatchString(l) && len(found) < maxCauseLines {
				found = append(found, l)
			}
		}
		if len(found) > 0 {
			return c, found
		}
	}
	return Cause{}, lines[max(0, len(lines)-maxCauseLines):]
}
