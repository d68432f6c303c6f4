package plugin

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
)

func (e enc) progress(p matrix.Progress) *enginev1.Progress {
	return &enginev1.Progress{Phase: text(p.Phase), Line: text(p.Line)}
}

func (d dec) progress(m *enginev1.Progress) matrix.Progress {
	return matrix.Progress{Phase: m.GetPhase(), Line: m.GetLine()}
}

func (e enc) process(p matrix.Process) *enginev1.Process {
	return &enginev1.Process{Pid: number(p.PID), StartTime: new(p.StartTime), BootId: text(p.BootID), Exe: text(p.Exe)}
}

func (d dec) process(m *enginev1.Process) matrix.Process {
	return matrix.Process{PID: toInt(m.GetPid()), StartTime: m.GetStartTime(), BootID: m.GetBootId(), Exe: m.GetExe()}
}

func (e enc) tokenSource(s matrix.TokenSource) *enginev1.TokenSource {
	return &enginev1.TokenSource{Name: text(s.Name), Kind: countKinds.encode(e, "token source "+s.Name, s.Kind)}
}

func (d dec) tokenSource(m *enginev1.TokenSource) matrix.TokenSource {
	m = given(m)
	return matrix.TokenSource{Name: m.GetName(), Kind: countKinds.decode(d, "token source "+m.GetName(), m.Kind)}
}

func (e enc) dialect(x matrix.Dialect) *enginev1.Dialect {
	return &enginev1.Dialect{
		BaseUrl:           text(x.BaseURL),
		Path:              text(x.Path),
		ChatPath:          text(x.ChatPath),
		Form:              text(x.Form),
		Model:             text(x.Model),
		EchoesModel:       new(x.EchoesModel),
		PromptForm:        text(x.PromptForm),
		MaxTokensField:    text(x.MaxTokensField),
		End:               text(x.End),
		Cumulative:        new(x.Cumulative),
		Usage:             text(x.Usage),
		RunningUsage:      new(x.RunningUsage),
		Sources:           each(x.Sources, e.tokenSource),
		BodyJson:          e.object(x.Body),
		Headers:           x.Headers,
		AddedPromptTokens: number(x.AddedPrompt),
		ContextTokens:     number(x.ContextTokens),
		ClipMargin:        number(x.ClipMargin),
		CachedReported:    new(x.CachedReported),
		Liveness:          &enginev1.Probe{Kind: text(x.Liveness.Kind), Path: text(x.Liveness.Path)},
		TokenizePath:      text(x.TokenizePath),
		MaxPromptTokens:   number(x.MaxPromptTokens),
	}
}

func (d dec) dialect(m *enginev1.Dialect) matrix.Dialect {
	m = given(m)
	return matrix.Dialect{
		BaseURL:         m.GetBaseUrl(),
		Path:            m.GetPath(),
		ChatPath:        m.GetChatPath(),
		Form:            m.GetForm(),
		Model:           m.GetModel(),
		EchoesModel:     m.GetEchoesModel(),
		PromptForm:      m.GetPromptForm(),
		MaxTokensField:  m.GetMaxTokensField(),
		End:             m.GetEnd(),
		Cumulative:      m.GetCumulative(),
		Usage:           m.GetUsage(),
		RunningUsage:    m.GetRunningUsage(),
		Sources:         each(m.GetSources(), d.tokenSource),
		Body:            d.object(m.BodyJson),
		Headers:         m.GetHeaders(),
		AddedPrompt:     toInt(m.GetAddedPromptTokens()),
		ContextTokens:   toInt(m.GetContextTokens()),
		ClipMargin:      toInt(m.GetClipMargin()),
		CachedReported:  m.GetCachedReported(),
		Liveness:        matrix.Probe{Kind: m.GetLiveness().GetKind(), Path: m.GetLiveness().GetPath()},
		TokenizePath:    m.GetTokenizePath(),
		MaxPromptTokens: toInt(m.GetMaxPromptTokens()),
	}
}

func (e enc) ready(r matrix.Ready) *enginev1.Ready {
	return &enginev1.Ready{
		Dialect:     e.dialect(r.Dialect),
		Processes:   each(r.Processes, e.process),
		Argv:        r.Argv,
		Env:         r.Env,
		Facts:       each(r.Facts, e.fact),
		Granted:     e.limits(r.Granted),
		LoadTime:    durationpb.New(r.LoadTime),
		FirstToken:  durationpb.New(r.FirstToken),
		LogPath:     text(r.LogPath),
		LoadedFiles: r.LoadedFiles,
		Print:       text(r.Print),
	}
}

func (d dec) ready(m *enginev1.Ready) matrix.Ready {
	return matrix.Ready{
		Dialect:     d.dialect(m.GetDialect()),
		Processes:   each(m.GetProcesses(), d.process),
		Argv:        m.GetArgv(),
		Env:         m.GetEnv(),
		Facts:       each(m.GetFacts(), d.fact),
		Granted:     d.limits(m.GetGranted()),
		LoadTime:    m.GetLoadTime().AsDuration(),
		FirstToken:  m.GetFirstToken().AsDuration(),
		LogPath:     m.GetLogPath(),
		LoadedFiles: m.GetLoadedFiles(),
		Print:       m.GetPrint(),
	}
}

func (e enc) state(s matrix.State) *enginev1.State {
	return &enginev1.State{
		Facts:          each(s.Facts, e.fact),
		Alive:          new(s.Alive),
		Running:        optional(s.Running, same),
		Generated:      optional(s.Generated, same),
		CachedTokens:   optional(s.CachedTokens, same),
		DraftedTokens:  optional(s.DraftedTokens, same),
		AcceptedTokens: optional(s.AcceptedTokens, same),
		Processes:      each(s.Processes, e.process),
		Exit:           optional(s.Exit, fromInt),
		Print:          text(s.Print),
	}
}

func (d dec) state(m *enginev1.State) matrix.State {
	m = given(m)
	return matrix.State{
		Facts:          each(m.GetFacts(), d.fact),
		Alive:          m.GetAlive(),
		Running:        fromOptional(m.Running, same),
		Generated:      fromOptional(m.Generated, same),
		CachedTokens:   fromOptional(m.CachedTokens, same),
		DraftedTokens:  fromOptional(m.DraftedTokens, same),
		AcceptedTokens: fromOptional(m.AcceptedTokens, same),
		Processes:      each(m.GetProcesses(), d.process),
		Exit:           fromOptional(m.Exit, toInt),
		Print:          m.GetPrint(),
	}
}

func (e enc) stopped(s matrix.Stopped) *enginev1.Stopped {
	return &enginev1.Stopped{
		Exit:      optional(s.Exit, fromInt),
		How:       text(s.How),
		Survivors: each(s.Survivors, e.process),
		PortFree:  new(s.PortFree),
		Took:      durationpb.New(s.Took),
		LogTail:   s.LogTail,
	}
}

func (d dec) stopped(m *enginev1.Stopped) matrix.Stopped {
	m = given(m)
	return matrix.Stopped{
		Exit:      fromOptional(m.Exit, toInt),
		How:       m.GetHow(),
		Survivors: each(m.GetSurvivors(), d.process),
		PortFree:  m.GetPortFree(),
		Took:      m.GetTook().AsDuration(),
		LogTail:   m.GetLogTail(),
	}
}

func (e enc) preflight(r matrix.PreflightResult) *enginev1.PreflightResult {
	return &enginev1.PreflightResult{
		Ready:   part(r.Ready, e.ready),
		Text:    text(r.Text),
		Ids:     each(r.IDs, fromInt),
		Stopped: e.stopped(r.Stopped),
		Made:    each(r.Made, e.fact),
	}
}

func (d dec) preflight(m *enginev1.PreflightResult) matrix.PreflightResult {
	return matrix.PreflightResult{
		Ready:   fromPart(m.GetReady(), d.ready),
		Text:    m.GetText(),
		IDs:     each(m.GetIds(), toInt),
		Stopped: d.stopped(m.GetStopped()),
		Made:    each(m.GetMade(), d.fact),
	}
}
