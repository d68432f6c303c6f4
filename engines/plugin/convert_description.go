package plugin

import (
	"enginebroker/engines"
	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

func (e enc) fact(f matrix.Fact) *enginev1.Fact {
	return &enginev1.Fact{
		Name:     text(f.Name),
		Value:    text(f.Value),
		Where:    text(f.Where),
		Standing: standings.encode(e, "fact "+f.Name, f.Standing),
	}
}

func (d dec) fact(m *enginev1.Fact) matrix.Fact {
	m = given(m)
	return matrix.Fact{
		Name:     m.GetName(),
		Value:    m.GetValue(),
		Where:    m.GetWhere(),
		Standing: standings.decode(d, "fact "+m.GetName(), m.Standing),
	}
}

func (e enc) statement(s matrix.Statement) *enginev1.Statement {
	return &enginev1.Statement{
		Status:     statuses.encode(e, "statement", s.Status),
		Why:        text(s.Why),
		Source:     text(s.Source),
		Conditions: s.Conditions,
	}
}

func (d dec) statement(m *enginev1.Statement) matrix.Statement {
	m = given(m)
	return matrix.Statement{
		Status:     statuses.decode(d, "statement", m.Status),
		Why:        m.GetWhy(),
		Source:     m.GetSource(),
		Conditions: m.GetConditions(),
	}
}

func (e enc) capability(c matrix.Capability) *enginev1.Capability {
	return &enginev1.Capability{
		Container:     text(c.Container),
		Quantization:  text(c.Quantization),
		Architectures: c.Architectures,
		Statement:     e.statement(c.Statement),
	}
}

func (d dec) capability(m *enginev1.Capability) matrix.Capability {
	return matrix.Capability{
		Container:     m.GetContainer(),
		Quantization:  m.GetQuantization(),
		Architectures: m.GetArchitectures(),
		Statement:     d.statement(m.GetStatement()),
	}
}

func (e enc) setting(s matrix.Setting) *enginev1.Setting {
	return &enginev1.Setting{
		Name:     text(s.Name),
		Type:     text(s.Type),
		Help:     text(s.Help),
		Required: new(s.Required),
		Default:  text(s.Default),
		Values:   s.Values,
	}
}

func (d dec) setting(m *enginev1.Setting) matrix.Setting {
	return matrix.Setting{
		Name:     m.GetName(),
		Type:     m.GetType(),
		Help:     m.GetHelp(),
		Required: m.GetRequired(),
		Default:  m.GetDefault(),
		Values:   m.GetValues(),
	}
}

func (e enc) description(x matrix.Description) *enginev1.Description {
	return &enginev1.Description{
		Engine:       text(x.Engine),
		Installed:    new(x.Installed),
		LookedFor:    x.LookedFor,
		Identity:     each(x.Identity, e.fact),
		Capabilities: each(x.Capabilities, e.capability),
		Refuses:      each(x.Refuses, e.statement),
		Settings:     each(x.Settings, e.setting),
		Simulated:    new(x.Simulated),
	}
}

func (d dec) description(m *enginev1.Description) matrix.Description {
	return matrix.Description{
		Engine:       m.GetEngine(),
		Installed:    m.GetInstalled(),
		LookedFor:    m.GetLookedFor(),
		Identity:     each(m.GetIdentity(), d.fact),
		Capabilities: each(m.GetCapabilities(), d.capability),
		Refuses:      each(m.GetRefuses(), d.statement),
		Settings:     each(m.GetSettings(), d.setting),
		Simulated:    m.GetSimulated(),
	}
}

func (e enc) fieldError(f engines.FieldError) *enginev1.FieldError {
	return &enginev1.FieldError{Field: text(f.Field), Message: text(f.Message), Fix: text(f.Fix)}
}

func (d dec) fieldError(m *enginev1.FieldError) engines.FieldError {
	return engines.FieldError{Field: m.GetField(), Message: m.GetMessage(), Fix: m.GetFix()}
}

func (e enc) startFailure(f matrix.StartFailure) *enginev1.StartFailure {
	return &enginev1.StartFailure{
		Code:      text(f.Code),
		Phase:     text(f.Phase),
		Message:   text(f.Message),
		Fix:       text(f.Fix),
		RootCause: f.RootCause,
		Exit:      optional(f.Exit, fromInt),
		LogPath:   text(f.LogPath),
	}
}

func (d dec) startFailure(m *enginev1.StartFailure) matrix.StartFailure {
	m = given(m)
	return matrix.StartFailure{
		Code:      m.GetCode(),
		Phase:     m.GetPhase(),
		Message:   m.GetMessage(),
		Fix:       m.GetFix(),
		RootCause: m.GetRootCause(),
		Exit:      fromOptional(m.Exit, toInt),
		LogPath:   m.GetLogPath(),
	}
}
