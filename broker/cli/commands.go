package cli

import "github.com/spf13/cobra"

// commands lists every command; each has a file of its own.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.matrixCommand(),
		a.planCommand(),
		a.resumeCommand(),
		a.rerunCommand(),
		a.aaCommand(),
		a.reloadCommand(),
		a.abCommand(),
		a.watchCommand(),
		a.cancelCommand(),
		a.reportCommand(),
		a.explainCommand(),
		a.compareCommand(),
		a.holdCommand(),
		a.runsCommand(),
		a.importCommand(),
		a.enginesCommand(),
		a.modelsCommand(),
		a.inspectCommand(),
		a.preflightCommand(),
		a.pinsCommand(),
		a.gateCommand(),
		a.diffCommand(),
		a.claimsCommand(),
		a.auditCommand(),
		a.corpusCommand(),
		a.serveCommand(),
		a.doctorCommand(),
		a.boxCommand(),
		a.calibrateCommand(),
		a.streamCommand(),
		a.protocolCommand(),
	}
}
