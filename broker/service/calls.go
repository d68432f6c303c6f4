package service

import (
	"context"
	"fmt"
	"io"
)

// These have one form for callers here and callers through a daemon.

// ListModels lists the catalog.
func (s *Service) ListModels(context.Context) ([]CatalogModel, error) { return s.Models(), nil }

// ExplainCells writes why the cells of a run that Cells finds have their verdict.
func (s *Service) ExplainCells(ctx context.Context, w io.Writer, run string, words []string, look Look) error {
	cells, torn, err := s.cells(ctx, run, words)
	if err != nil {
		return err
	}
	if torn != "" {
		if _, err := fmt.Fprintln(w, torn); err != nil {
			return err
		}
	}
	for _, c := range cells {
		if err := Explain(w, c, look); err != nil {
			return err
		}
	}
	return nil
}
