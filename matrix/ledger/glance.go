package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"enginebroker/matrix/regular"
)

// glance bounds what Glance reads of a ledger's end.
const glance = 64 << 10

// Glance looks at the end of a run's ledger alone, as a listing can afford: whether the ledger ends where its head says. What
// stands before is for Read and Verify. A last record longer than the look is not looked at.
func Glance(dir string) (Findings, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var want head
	// The head comes first, so that a running append is never taken for a loss.
	b, err := regular.ReadFileIn(root, HeadFile, maxHead)
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	if err != nil {
		return Findings{{Code: HeadMissing, Path: HeadFile, Detail: err.Error(), Lost: "the proof that the ledger's end is its end"}}, nil
	}
	f, err := regular.OpenIn(root, LedgerFile)
	if err != nil {
		return Findings{{Code: LedgerMissing, Path: LedgerFile, Detail: err.Error(), Lost: "every record"}}, nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	end := make([]byte, min(st.Size(), glance))
	if _, err := f.ReadAt(end, st.Size()-int64(len(end))); err != nil {
		return nil, err
	}
	var found Findings
	whole := end[:bytes.LastIndexByte(end, '\n')+1]
	if len(whole) < len(end) && !errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		found = append(found, Finding{Code: TornLine, Path: LedgerFile, Detail: "the last line has no end", Lost: "the record in flight"})
	}
	from := bytes.LastIndexByte(bytes.TrimSuffix(whole, []byte("\n")), '\n') + 1
	if from == 0 && int64(len(end)) < st.Size() {
		return found, nil
	}
	last := head{}
	if len(whole) > 0 {
		rec, err := parse(bytes.TrimSuffix(whole[from:], []byte("\n")))
		if err != nil {
			return append(found, Finding{Code: BadRecord, Path: LedgerFile, Detail: "its last record: " + err.Error(), Lost: "that record"}), nil
		}
		last = head{Seq: rec.Seq, Sum: rec.Sum}
	}
	if last.Seq < want.Seq || last.Seq == want.Seq && want.Seq > 0 && last.Sum != want.Sum {
		found = append(found, Finding{Code: LedgerCut, Path: LedgerFile, Seq: want.Seq,
			Detail: fmt.Sprintf("the head names record %d and the ledger ends at record %d", want.Seq, last.Seq), Lost: "what is between"})
	}
	return found, nil
}
