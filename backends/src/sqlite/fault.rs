//! What can go wrong in SQLite, and what it means to a caller of the port.

use std::sync::Arc;

use contract::StoreError;

/// Why an operation, or the transaction around it, did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// SQLite's own error.
    #[error("{0}")]
    Database(#[source] Arc<sqlx::Error>),
    /// A row does not hold what this build writes.
    #[error("{0}")]
    Corrupt(String),
}

/// SQLite's primary result codes that are about the statement or the data, not about the machine.
const ERROR: i64 = 1;
const CORRUPT: i64 = 11;
const TOO_BIG: i64 = 18;
const CONSTRAINT: i64 = 19;
const MISMATCH: i64 = 20;
const NOT_A_DATABASE: i64 = 26;
/// The disk is full, or another process holds the write lock: refused before anything was written.
const FULL: i64 = 13;
const BUSY: i64 = 5;

impl From<sqlx::Error> for Fault {
    fn from(err: sqlx::Error) -> Self {
        Fault::Database(Arc::new(err))
    }
}

impl Fault {
    /// The primary result code, if the error came from SQLite itself.
    fn code(&self) -> Option<i64> {
        let Fault::Database(err) = self else { return None };
        let extended: i64 = err.as_database_error()?.code()?.parse().ok()?;
        Some(extended & 0xff)
    }

    /// True when one operation is at fault, so that others can go on without it; false when the disk or the
    /// connection is.
    pub(super) fn is_about_one_operation(&self) -> bool {
        match (self, self.code()) {
            (Fault::Corrupt(_), _) => true,
            (_, Some(code)) => matches!(code, ERROR | TOO_BIG | CONSTRAINT | MISMATCH),
            (Fault::Database(err), None) => {
                matches!(**err, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_))
            }
        }
    }

    /// For a transaction that was rolled back, or never begun.
    pub(super) fn nothing_written(self) -> StoreError {
        match (&self, self.code()) {
            (Fault::Corrupt(what), _) => StoreError::Corrupt(what.clone()),
            (_, Some(ERROR | CORRUPT | TOO_BIG | CONSTRAINT | MISMATCH | NOT_A_DATABASE)) => {
                StoreError::Corrupt(self.to_string())
            }
            (Fault::Database(err), None)
                if matches!(**err, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) =>
            {
                StoreError::Corrupt(self.to_string())
            }
            _ => StoreError::Unreachable(Box::new(self)),
        }
    }

    /// For a commit that failed: only some codes say for sure that nothing was kept.
    pub(super) fn of_commit(self) -> StoreError {
        match self.code() {
            Some(FULL | BUSY | CONSTRAINT) => self.nothing_written(),
            _ => StoreError::Unanswered(Box::new(self)),
        }
    }
}
