package service

import (
	"enginebroker/engines/pins"
	"enginebroker/matrix"
)

// checkPin compares what runs with the arm's declared pin; absent where none is declared.
func (s *Service) checkPin(arm matrix.Arm, ready matrix.Ready) matrix.Opt[matrix.PinCheck] {
	if arm.Pin == "" {
		return matrix.Opt[matrix.PinCheck]{}
	}
	set, err := pins.Load(s.cfg.Pins)
	if err != nil {
		return matrix.Some(matrix.PinCheck{Pin: arm.Pin, Mismatch: []matrix.PinMismatch{{Field: "pin", Expected: "a readable record in " + s.cfg.Pins, Found: err.Error()}}})
	}
	pin, ok := set[arm.Pin]
	if !ok {
		return matrix.Some(matrix.PinCheck{Pin: arm.Pin, Mismatch: []matrix.PinMismatch{{Field: "pin", Expected: "a record named " + arm.Pin, Found: "none in " + s.cfg.Pins}}})
	}
	return matrix.Some(pins.Check(pin, ready.Facts))
}
